//! Counts what the schemas of one grammar cost to compile, where the compiler itself counts nothing.
use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::grammar::error::GrammarError;
use crate::limits;

/// What the schemas of one grammar cost together.
#[derive(Debug, Default)]
pub(crate) struct Work {
    multiples: u64,
    measured: usize,
    /// Squares.
    names: u64,
}

impl Work {
    /// A multiple, without its decimal point. The compiler has a state for each rest that a number may leave.
    pub(super) fn multiple(&mut self, multiple: u64) -> Result<(), GrammarError> {
        self.multiples += multiple;
        let (all, max) = (self.multiples, limits::SCHEMA_MULTIPLES);
        let why = || format!("all multiples together, without their decimal points, are over {max}");
        if all > max { Err(GrammarError::too_large(why())) } else { Ok(()) }
    }

    /// A schema of objects. What the compiler does for each name grows with the number of names.
    pub(super) fn object(&mut self, schema: &Map<String, Value>) -> Result<(), GrammarError> {
        let properties = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let names: HashSet<&str> = required.iter().filter_map(Value::as_str).collect();
        let optional = properties.map_or(0, |all| all.keys().filter(|name| !names.contains(name.as_str())).count());
        let (named, required) = (properties.map_or(0, Map::len), required.len());
        let (count, max) = (named.max(required) as u64, limits::SCHEMA_NAMES as u64);
        self.names += count * count;
        let most = limits::SCHEMA_OPTIONAL;
        if optional > most {
            return Err(GrammarError::too_large(format!(
                "{optional} properties that are not required, at most {most}"
            )));
        }
        let why = || {
            format!(
                "{count} names in its properties or required, at most {max}, and fewer where other schemas have many"
            )
        };
        if self.names > max * max { Err(GrammarError::too_large(why())) } else { Ok(()) }
    }

    /// A schema of strings. The compiler looks for one of the length that the pattern has, through all of its states.
    pub(super) fn string(&mut self, schema: &Map<String, Value>) -> Result<(), GrammarError> {
        let has = |names: [&str; 2]| names.iter().any(|name| schema.contains_key(*name));
        self.measured += usize::from(has(["minLength", "maxLength"]) && has(["pattern", "format"]));
        let max = limits::SCHEMA_MEASURED;
        let why = || format!("over {max} strings have a pattern or a format and a bound of their length");
        if self.measured > max { Err(GrammarError::too_large(why())) } else { Ok(()) }
    }
}
