//! `strftime` for the dates that chat templates print, in UTC.
use std::fmt::Write as _;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const DAY_SECONDS: u64 = 86_400;

/// A time in UTC, in the proleptic Gregorian calendar.
struct Moment {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// From 0, Sunday.
    weekday: usize,
    /// From 1.
    year_day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

/// Formats a time. Copies unknown directives.
pub(super) fn format(format: &str, unix_seconds: u64) -> String {
    let moment = Moment::new(unix_seconds);
    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (padded, directive) = match chars.next() {
            Some('-') => (false, chars.next()),
            directive => (true, directive),
        };
        moment.write(&mut out, directive, padded);
    }
    out
}

impl Moment {
    fn new(unix_seconds: u64) -> Self {
        let days = unix_seconds / DAY_SECONDS;
        let rest = unix_seconds % DAY_SECONDS;
        let (mut year, mut year_day) = (1970, days);
        while year_day >= year_days(year) {
            year_day -= year_days(year);
            year += 1;
        }
        let (mut month, mut day) = (0, year_day);
        while day >= month_days(year, month) {
            day -= month_days(year, month);
            month += 1;
        }
        Self {
            year,
            month,
            day: day + 1,
            // 1 January 1970 was a Thursday.
            weekday: ((days + 4) % 7) as usize,
            year_day: year_day + 1,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }

    fn write(&self, out: &mut String, directive: Option<char>, padded: bool) {
        let number = |out: &mut String, number: u64, width: usize| {
            let width = if padded { width } else { 0 };
            let _ = write!(out, "{number:0width$}");
        };
        match directive {
            Some('Y') => number(out, self.year, 4),
            Some('y') => number(out, self.year % 100, 2),
            Some('m') => number(out, self.month as u64 + 1, 2),
            Some('d') => number(out, self.day, 2),
            Some('j') => number(out, self.year_day, 3),
            Some('H') => number(out, self.hour, 2),
            Some('I') => number(out, (self.hour + 11) % 12 + 1, 2),
            Some('M') => number(out, self.minute, 2),
            Some('S') => number(out, self.second, 2),
            Some('p') => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            Some('B') => out.push_str(MONTHS[self.month]),
            Some('b' | 'h') => out.push_str(&MONTHS[self.month][..3]),
            Some('A') => out.push_str(WEEKDAYS[self.weekday]),
            Some('a') => out.push_str(&WEEKDAYS[self.weekday][..3]),
            Some('F') => {
                let _ = write!(out, "{:04}-{:02}-{:02}", self.year, self.month + 1, self.day);
            }
            Some('T') => {
                let _ = write!(out, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second);
            }
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            other => {
                out.push_str(if padded { "%" } else { "%-" });
                out.extend(other);
            }
        }
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_days(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_days(year: u64, month: usize) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn formats_the_dates_that_templates_print() {
        let check = |seconds, pattern, expected: &str| assert_eq!(format(pattern, seconds), expected);
        check(0, "%d %b %Y", "01 Jan 1970");
        check(0, "%A, %-d %B %Y %I:%M %p", "Thursday, 1 January 1970 12:00 AM");
        check(951_827_696, "%Y-%m-%d %H:%M:%S %j", "2000-02-29 12:34:56 060");
        check(1_735_689_599, "%F %T %a %y", "2024-12-31 23:59:59 Tue 24");
        check(4_102_444_800, "%F", "2100-01-01");
        check(0, "100%% %q %", "100% %q %");
    }
}
