//! Lists the functions of every interface in `wit/`, so that what a component imports can be checked before it is compiled.
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use wit_parser::Resolve;

fn main() -> Result<(), Box<dyn Error>> {
    let wit = Path::new("../../wit");
    for part in ["worlds.wit", "deps"] {
        println!("cargo::rerun-if-changed={}", wit.join(part).display());
    }
    let mut resolve = Resolve::default();
    resolve.push_path(wit)?;
    let mut interfaces = BTreeMap::new();
    for (id, interface) in resolve.interfaces.iter() {
        let Some(name) = resolve.id_of(id) else { continue };
        let plain = name.split('@').next().unwrap_or(&name).to_owned();
        interfaces.insert(plain, interface.functions.keys().cloned().collect::<Vec<String>>());
    }
    let mut text = String::from("&[\n");
    for (name, functions) in interfaces {
        writeln!(text, "    ({name:?}, &{functions:?}),")?;
    }
    text.push(']');
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("functions.rs"), text)?;
    Ok(())
}
