//! JSON schemas by number: every kind of value, bounded so that a small model comes to an end.
use serde_json::{Map, Value, json};

/// Numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

const NAMES: [&str; 8] = ["name", "city", "age", "tags", "price", "is_open", "unit", "id"];

/// Of any value.
pub(super) fn schema(number: u64) -> Value {
    let mut random = Random(number);
    match number % 4 {
        0 => value(&mut random, 0),
        _ => object_of(&mut random, 0),
    }
}

/// Of an object.
pub(super) fn object(number: u64) -> Value {
    object_of(&mut Random(number), 0)
}

fn object_of(random: &mut Random, depth: u64) -> Value {
    let (first, members) = (random.below(8) as usize, random.below(4) + 1);
    let mut properties = Map::new();
    for member in 0..members as usize {
        properties.insert(NAMES[(first + member) % NAMES.len()].to_owned(), value(random, depth + 1));
    }
    let required: Vec<&String> = properties.keys().take(random.below(members + 1) as usize).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn value(random: &mut Random, depth: u64) -> Value {
    let kinds = if depth < 3 { 16 } else { 13 };
    match random.below(kinds) {
        0 => json!({"type": "string", "maxLength": 1 + random.below(12)}),
        1 => json!({"type": "string", "minLength": 2, "maxLength": 6}),
        2 => json!({"type": "string", "enum": ["red", "green", "bl\"ue", "x\ny"]}),
        3 => json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"}),
        4 => json!({"type": "string", "format": "date"}),
        5 => json!({"type": "integer", "minimum": -5, "maximum": 1000}),
        6 => json!({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}),
        7 => json!({"type": "number", "minimum": 0, "maximum": 1}),
        8 => json!({"type": "boolean"}),
        9 => json!({"type": "null"}),
        10 => json!({"const": {"a": [1, "b", null]}}),
        11 => json!({"enum": [1, "two", [3], true, null]}),
        12 => json!({"type": ["integer", "null"], "minimum": 0, "maximum": 9}),
        13 => json!({"type": "array", "items": value(random, depth + 1), "minItems": 1, "maxItems": 3}),
        14 => json!({"anyOf": [{"type": "boolean"}, object_of(random, depth + 1)]}),
        _ => object_of(random, depth + 1),
    }
}
