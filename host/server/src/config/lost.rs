//! What a configuration file has lost since it was put in force: a full disk, or a write that stopped, leaves its beginning,
//! which is a configuration, too.
use toml::{Table, Value};

/// What a file that is read again lacks, although nobody may have meant to remove it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("sets nothing any more, as a file that was cut: restart to drop what it set")]
    Everything,
    #[error(
        "lacks {} now, as a file that was cut: to drop what was set there, write the header with nothing below it, or restart",
        headers(.0)
    )]
    Tables(Vec<String>),
    #[error("lacks policy.dir now, as a file that was cut: name a directory, or restart")]
    PolicyDirectory,
    #[error(
        "ends where the one in force goes on, as a file that was cut: to drop the rest, add a comment at its end, or restart"
    )]
    End,
}

fn headers(tables: &[String]) -> String {
    tables.iter().map(|table| format!("[{table}]")).collect::<Vec<_>>().join(", ")
}

/// What the text of a file in force has and the new one lacks. Both are TOML.
pub(crate) fn lost(old: &str, new: &str) -> Option<Lost> {
    let (before, now) = (old.parse::<Table>().ok()?, new.parse::<Table>().ok()?);
    if before == now {
        return None;
    }
    if now.is_empty() {
        return Some(Lost::Everything);
    }
    let gone = before.iter().filter(|(key, value)| sets(value) && !now.contains_key(*key));
    let gone: Vec<String> = gone.map(|(key, _)| key.clone()).collect();
    if !gone.is_empty() {
        return Some(Lost::Tables(gone));
    }
    let dir = |of: &Table| of.get("policy").and_then(|policy| policy.get("dir")).is_some();
    if dir(&before) && !dir(&now) {
        return Some(Lost::PolicyDirectory);
    }
    (old.len() > new.len() && old.starts_with(new)).then_some(Lost::End)
}

/// Whether this is a table, or a list of them, with anything in it. A single value is no more than an edit.
fn sets(value: &Value) -> bool {
    match value {
        Value::Table(table) => !table.is_empty(),
        Value::Array(list) => list.iter().any(Value::is_table),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "listen = \"127.0.0.1:0\"\n[policy]\ndir = \"p\"\npoll = \"1s\"\n[queue]\ntimeout = \"7s\"\n\
                       [limits]\nbody = \"2MiB\"\nmax-tokens = 440\n";

    fn without(text: &str) -> String {
        assert!(OLD.contains(text), "{text}");
        OLD.replace(text, "")
    }

    #[test]
    fn regression_a_file_that_may_have_been_cut_is_told_from_an_edited_one() {
        let tables = |names: &[&str]| Some(Lost::Tables(names.iter().map(|&name| name.to_owned()).collect()));
        for (new, expected) in [
            (String::new(), Some(Lost::Everything)),
            ("# only this\n\n".to_owned(), Some(Lost::Everything)),
            (without("[queue]\ntimeout = \"7s\"\n"), tables(&["queue"])),
            ("listen = \"127.0.0.1:0\"\n".to_owned(), tables(&["limits", "policy", "queue"])),
            (without("dir = \"p\"\n"), Some(Lost::PolicyDirectory)),
            (without("dir = \"p\"\npoll = \"1s\"\n"), Some(Lost::PolicyDirectory)),
            (without("max-tokens = 440\n"), Some(Lost::End)),
            (without("0\n"), Some(Lost::End)),
            (format!("{}# dropped\n", without("max-tokens = 440\n")), None),
            (OLD.replace("440\n", "44\n"), None),
            (without("timeout = \"7s\"\n"), None),
            (OLD.replace("\"p\"", "\"q\""), None),
            (without("listen = \"127.0.0.1:0\"\n"), None),
            (format!("{OLD}[log]\nlevel = \"debug\"\n"), None),
            (without("440\n") + "440", None),
        ] {
            assert_eq!(lost(OLD, &new), expected, "{new}");
        }
        for (old, new) in [("", ""), ("[queue]\n", ""), ("# x\n", "# x"), ("[queue]\n", "[limits]\n")] {
            let expected = (old == "[queue]\n" && new.is_empty()).then_some(Lost::Everything);
            assert_eq!(lost(old, new), expected, "{old:?} {new:?}");
        }
        assert_eq!(lost("[[model]]\nid = \"a\"\n[log]\n", "[log]\n"), tables(&["model"]));
    }
}
