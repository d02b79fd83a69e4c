//! What of Python a state dictionary may refer to. A file that refers to anything else is refused.
use burn_core::tensor::{BoolStore, DType};

/// What a name in a pickle stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Global {
    /// `collections.OrderedDict`
    OrderedDict,
    /// `torch._utils._rebuild_tensor`, which takes a storage, an offset in it, a shape and strides; version 2 takes more behind them.
    Tensor,
    /// `torch._utils._rebuild_parameter`, which takes a tensor first; the one with a state takes more behind that.
    Parameter,
    /// A storage, by the type of its numbers.
    Storage(&'static Numbers),
    /// A type of numbers, which a checkpoint may note beside its tensors.
    Datatype,
}

/// The numbers of a storage.
#[derive(Debug, PartialEq)]
pub(crate) struct Numbers {
    /// What PyTorch calls the storage.
    pub(crate) storage: &'static str,
    pub(crate) dtype: DType,
    pub(crate) bytes: u64,
}

static STORAGES: [Numbers; 10] = [
    Numbers { storage: "DoubleStorage", dtype: DType::F64, bytes: 8 },
    Numbers { storage: "FloatStorage", dtype: DType::F32, bytes: 4 },
    Numbers { storage: "HalfStorage", dtype: DType::F16, bytes: 2 },
    Numbers { storage: "BFloat16Storage", dtype: DType::BF16, bytes: 2 },
    Numbers { storage: "LongStorage", dtype: DType::I64, bytes: 8 },
    Numbers { storage: "IntStorage", dtype: DType::I32, bytes: 4 },
    Numbers { storage: "ShortStorage", dtype: DType::I16, bytes: 2 },
    Numbers { storage: "CharStorage", dtype: DType::I8, bytes: 1 },
    Numbers { storage: "ByteStorage", dtype: DType::U8, bytes: 1 },
    Numbers { storage: "BoolStorage", dtype: DType::Bool(BoolStore::Native), bytes: 1 },
];

const DATATYPES: [&str; 12] = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
];

impl Global {
    /// `None`: no state dictionary needs it.
    pub(crate) fn of(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Self::Tensor,
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Self::Parameter,
            ("torch", name) if DATATYPES.contains(&name) => Self::Datatype,
            ("torch", name) => Self::Storage(STORAGES.iter().find(|numbers| numbers.storage == name)?),
            _ => return None,
        })
    }
}
