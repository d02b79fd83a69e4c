//! `strftime` for the dates that chat templates print, in UTC.
use time::OffsetDateTime;
use time::format_description::parse_strftime_borrowed;

/// Formats a time as C's `strftime` does. Copies unknown directives.
pub(super) fn format(format: &str, time: OffsetDateTime) -> String {
    let mut out = String::with_capacity(format.len() + 16);
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let flag = rest[at + 1..].starts_with(['-', '_', '0']);
        let letter = rest[at + 1..].chars().nth(usize::from(flag));
        let end = at + 1 + usize::from(flag) + letter.map_or(0, char::len_utf8);
        let directive = &rest[at..end];
        let formatted = match directive {
            "%z" => Some("+0000".to_owned()),
            "%Z" => Some("UTC".to_owned()),
            // Of the crate's, Sunday is 1.
            "%w" => Some(time.weekday().number_days_from_sunday().to_string()),
            "%f" => Some(format!("{:06}", time.microsecond())),
            _ => parse_strftime_borrowed(directive).ok().and_then(|items| time.format(&items).ok()),
        };
        out.push_str(formatted.as_deref().unwrap_or(directive));
        rest = &rest[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_the_dates_that_templates_print() {
        let check = |seconds, pattern, expected: &str| {
            assert_eq!(format(pattern, OffsetDateTime::from_unix_timestamp(seconds).unwrap()), expected, "{pattern}");
        };
        check(0, "%d %b %Y", "01 Jan 1970");
        check(0, "%A, %-d %B %Y %I:%M %p", "Thursday, 1 January 1970 12:00 AM");
        check(951_827_696, "%Y-%m-%d %H:%M:%S %j", "2000-02-29 12:34:56 060");
        check(1_735_689_599, "%F %T %a %y", "2024-12-31 23:59:59 Tue 24");
        check(
            1_735_689_599,
            "%e|%-m|%_H|%u|%w|%V|%G|%C|%D|%R|%s|%z|%Z|%f",
            "31|12|23|2|2|01|2025|20|12/31/24|23:59|1735689599|+0000|UTC|000000",
        );
        check(1_735_689_599, "%c|%x|%X|%U|%W", "Tue Dec 31 23:59:59 2024|12/31/24|23:59:59|52|53");
        check(4_102_444_800, "%F", "2100-01-01");
        check(0, "100%% %q %é %-", "100% %q %é %-");
    }
}
