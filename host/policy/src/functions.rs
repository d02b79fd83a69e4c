//! The functions of imported interfaces, read from a component's types before anything is compiled.
//!
//! Of the types at the top level only those of instances are read whole, and nothing that nests: the reader of `wasmparser` calls
//! itself for each level, and a hostile file has as many as it likes. Past a type that nests nothing is known; then the linker
//! finds what is missing, after the compile. Compilers of languages do not nest types there.
use wasmparser::{
    BinaryReader, BinaryReaderError, ComponentAlias, ComponentExternalKind, ComponentOuterAliasKind, ComponentType,
    ComponentTypeRef, InstanceTypeDeclaration,
};

/// What this host has, by interface without version, from `wit/`.
const OFFERED: &[(&str, &[&str])] = include!(concat!(env!("OUT_DIR"), "/functions.rs"));
/// Maximum declarations of an instance's type.
const DECLARATIONS: usize = 100_000;
/// Maximum functions of all interfaces of a component together.
pub(crate) const FUNCTIONS: usize = 16_384;

const CORE_TYPE: u8 = 0x00;
const TYPE: u8 = 0x01;
const COMPONENT: u8 = 0x41;
const INSTANCE: u8 = 0x42;

/// Whether this host has a function of an interface.
pub(crate) fn is_offered(interface: &str, function: &str) -> bool {
    OFFERED.iter().any(|(name, functions)| *name == interface && functions.contains(&function))
}

/// The types at the top level of a component, in the order of their indices.
#[derive(Debug, Default)]
pub(crate) struct Types<'a> {
    /// For each type the functions of an instance; empty for other types.
    functions: Vec<Vec<&'a str>>,
    held: usize,
    /// Whether the types from here on are not known.
    lost: bool,
}

/// More functions than a component may have.
#[derive(Debug)]
pub(crate) struct TooMany;

impl<'a> Types<'a> {
    /// The functions of an instance's type; none where that is not known.
    pub(crate) fn functions(&self, index: u32) -> &[&'a str] {
        usize::try_from(index).ok().and_then(|index| self.functions.get(index)).map_or(&[], Vec::as_slice)
    }

    /// An import of a type has the next index.
    pub(crate) fn imported(&mut self, what: &ComponentTypeRef) {
        self.other(matches!(what, ComponentTypeRef::Type(_)));
    }

    /// So has an export of a type.
    pub(crate) fn exported(&mut self, kind: ComponentExternalKind) {
        self.other(kind == ComponentExternalKind::Type);
    }

    /// And an alias of one.
    pub(crate) fn aliased(&mut self, alias: &ComponentAlias<'_>) {
        self.other(matches!(
            alias,
            ComponentAlias::InstanceExport { kind: ComponentExternalKind::Type, .. }
                | ComponentAlias::Outer { kind: ComponentOuterAliasKind::Type, .. }
        ));
    }

    fn other(&mut self, is_type: bool) {
        if is_type && !self.lost {
            self.functions.push(Vec::new());
        }
    }

    /// Reads a section of types.
    pub(crate) fn read(&mut self, mut section: BinaryReader<'a>) -> Result<Result<(), TooMany>, BinaryReaderError> {
        for _ in 0..section.read_var_u32()? {
            if self.lost {
                return Ok(Ok(()));
            }
            let functions = match peek(&section)? {
                COMPONENT => None,
                INSTANCE => instance(&mut section)?,
                _ => section.read::<ComponentType<'_>>().map(|_| Some(Vec::new()))?,
            };
            let Some(functions) = functions else {
                self.lost = true;
                return Ok(Ok(()));
            };
            self.held += functions.len();
            if self.held > FUNCTIONS {
                return Ok(Err(TooMany));
            }
            self.functions.push(functions);
        }
        Ok(Ok(()))
    }
}

fn peek(reader: &BinaryReader<'_>) -> Result<u8, BinaryReaderError> {
    reader.clone().read_u8()
}

/// The functions of an instance's type. `None`: it nests.
fn instance<'a>(reader: &mut BinaryReader<'a>) -> Result<Option<Vec<&'a str>>, BinaryReaderError> {
    let mut functions = Vec::new();
    reader.read_u8()?;
    for _ in 0..reader.read_size(DECLARATIONS, "instance type declarations")? {
        let mut ahead = reader.clone();
        match (ahead.read_u8()?, peek(&ahead).ok()) {
            (CORE_TYPE, _) | (TYPE, Some(COMPONENT | INSTANCE)) => return Ok(None),
            _ => {}
        }
        if let InstanceTypeDeclaration::Export { name, ty: ComponentTypeRef::Func(_) } = reader.read()? {
            functions.push(name.name);
        }
    }
    Ok(Some(functions))
}
