//! Writes tensors in the formats that weights come in.
use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use burn_core::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn_core::tensor::{TensorData, f16};
use burn_ndarray::NdArray;
use burn_store::{BurnpackWriter, TensorSnapshot};
use serde::Serialize;
use tract_onnx::prelude::*;
use zip::write::SimpleFileOptions;

/// Shapes and numbers by their names, as PyTorch has them.
pub(crate) type Weights = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The weights of an ONNX file.
pub(crate) fn of_onnx(bytes: &[u8]) -> Weights {
    let proto = tract_onnx::onnx().proto_model_for_read(&mut &*bytes).expect("a model");
    let initializers = proto.graph.expect("a graph").initializer.into_iter();
    let weights = initializers.map(|tensor| {
        let shape = tensor.dims.iter().map(|&length| length as usize).collect();
        let numbers =
            tensor.raw_data.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        (tensor.name, (shape, numbers.collect()))
    });
    weights.collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub(crate) fn safetensors(weights: &Weights) -> Vec<u8> {
    let (mut head, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, numbers)) in weights {
        let begin = data.len();
        data.extend(bytes(numbers));
        let about = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        head.insert(name.clone(), about);
    }
    let head = serde_json::to_vec(&head).expect("JSON");
    [(head.len() as u64).to_le_bytes().to_vec(), head, data].concat()
}

/// A state dictionary in an archive, as `torch.save` writes it.
pub(crate) fn pt(weights: &Weights) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let text =
        |text: &str| [b"X".to_vec(), (text.len() as u32).to_le_bytes().to_vec(), text.as_bytes().to_vec()].concat();
    let number = |number: usize| [b"J".to_vec(), (number as i32).to_le_bytes().to_vec()].concat();
    let tuple =
        |numbers: &[usize]| [b"(".to_vec(), numbers.iter().flat_map(|&n| number(n)).collect(), b"t".to_vec()].concat();
    let mut pickle = b"\x80\x02}(".to_vec();
    for (at, (name, (shape, numbers))) in weights.iter().enumerate() {
        let strides: Vec<usize> = (1..=shape.len()).map(|axis| shape[axis..].iter().product()).collect();
        pickle.extend(text(name));
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        pickle
            .extend([text("storage"), b"ctorch\nFloatStorage\n".to_vec(), text(&at.to_string()), text("cpu")].concat());
        pickle.extend([number(numbers.len()), b"tQ".to_vec(), number(0), tuple(shape), tuple(&strides)].concat());
        pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR");
        archive.start_file(format!("archive/data/{at}"), stored).expect("a file");
        archive.write_all(&bytes(numbers)).expect("it is written");
    }
    pickle.extend(b"u.");
    archive.start_file("archive/data.pkl", stored).expect("a file");
    archive.write_all(&pickle).expect("it is written");
    archive.finish().expect("an archive").into_inner()
}

pub(crate) fn bpk(weights: &Weights) -> Vec<u8> {
    let snapshots = weights.iter().map(|(name, (shape, numbers))| {
        let data = TensorData::new(numbers.clone(), shape.clone());
        TensorSnapshot::from_data(data, name.split('.').map(str::to_owned).collect(), Vec::new(), Default::default())
    });
    BurnpackWriter::new(snapshots.collect()).to_bytes().expect("it is written").to_vec()
}

/// What a record is made of.
#[derive(Serialize)]
#[serde(untagged)]
enum Part {
    Module(BTreeMap<String, Part>),
    Parameter { id: String, param: TensorData },
}

#[derive(Serialize)]
struct Saved {
    metadata: BTreeMap<String, String>,
    item: BTreeMap<String, Part>,
}

pub(crate) fn mpk(weights: &Weights, is_half: bool) -> Vec<u8> {
    let mut item: BTreeMap<String, Part> = BTreeMap::new();
    for (name, (shape, numbers)) in weights {
        let data = TensorData::new(numbers.clone(), shape.clone());
        let param = if is_half { data.convert::<f16>() } else { data };
        let (module, key) = name.split_once('.').expect("a layer's parameter");
        let module = item.entry(module.to_owned()).or_insert_with(|| Part::Module(BTreeMap::new()));
        if let Part::Module(module) = module {
            module.insert(key.to_owned(), Part::Parameter { id: name.clone(), param });
        }
    }
    let saved = Saved { metadata: BTreeMap::from([("float".to_owned(), "f32".to_owned())]), item };
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
    Recorder::<NdArray>::save_item(&recorder, saved, ()).expect("it is written")
}
