//! Networks on a GPU against the same on the CPU. `cargo xtask test --wgpu` runs all of it on Mesa's software device; a test that
//! needs a device is named `given_wgpu_…`, and fails without one.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camshaft_core::jobs::BatchModel;
use camshaft_core::tensor::{Datatype, Number, Rows, Tensor};
use camshaft_tensor::{BackendChoice, Predictor, TensorModel, gather, load};

/// Bound of the difference of a number, as a part of the largest.
const TOLERANCE: f64 = 1e-3;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn model(path: &Path, backend: BackendChoice) -> TensorModel {
    let files = gather(path, |wanted| match std::fs::read(wanted.path) {
        Err(error) if wanted.may_be_missing && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    });
    load(files.unwrap(), backend).unwrap()
}

/// The same model on the GPU and on the CPU.
fn both(path: &Path) -> [TensorModel; 2] {
    let [gpu, cpu] = [BackendChoice::Wgpu, BackendChoice::Cpu].map(|backend| model(path, backend));
    assert!(gpu.facts.backend.starts_with("wgpu ("), "{} {:?}", gpu.facts.backend, gpu.facts.notes);
    assert_eq!(cpu.facts.backend, "ndarray");
    [gpu, cpu]
}

/// A model of one input, whose weights are some numbers. `layers`: a manifest's tables.
fn made(shape: &str, layers: &str, weights: &[(&str, &[usize])]) -> [TensorModel; 2] {
    let manifest = format!("weights = \"w.safetensors\"\n[[input]]\nname = \"x\"\nshape = {shape}\n{layers}");
    let (mut head, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in weights {
        let begin = data.len();
        let numbers =
            (0..shape.iter().product::<usize>()).map(|place| ((place * 37 + begin) % 101) as f32 / 150.0 - 0.3);
        // What divides by the square root of it.
        let numbers = numbers.map(|number| if name.ends_with("var") { number + 1.0 } else { number });
        data.extend(numbers.flat_map(f32::to_le_bytes));
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        head.insert((*name).to_owned(), entry);
    }
    let head = serde_json::Value::Object(head).to_string();
    let file = [&(head.len() as u64).to_le_bytes(), head.as_bytes(), &data].concat();
    [BackendChoice::Wgpu, BackendChoice::Cpu].map(|backend| {
        let files = gather(Path::new("m.toml"), |wanted| {
            let is_manifest = wanted.path == Path::new("m.toml");
            Ok::<_, ()>(Some(if is_manifest { manifest.clone().into_bytes() } else { file.clone() }))
        });
        let model = load(files.unwrap(), backend).unwrap();
        let expected = if backend == BackendChoice::Wgpu { "wgpu (" } else { "ndarray" };
        assert!(model.facts.backend.starts_with(expected), "{layers}: {:?}", model.facts);
        model
    })
}

fn floats(shape: &[usize]) -> Tensor {
    let numbers = (0..shape.iter().product()).map(|place: usize| (place * 7 % 61) as f32 / 30.0 - 1.0);
    Tensor::new(Datatype::Fp32, shape.to_vec(), numbers.flat_map(f32::to_le_bytes).collect()).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.numbers().map(Number::to_f64).collect()
}

fn assert_alike(gpu: &[Tensor], cpu: &[Tensor], what: &str) {
    assert_eq!(gpu.len(), cpu.len());
    for (gpu, cpu) in gpu.iter().zip(cpu) {
        assert_eq!(gpu.shape(), cpu.shape(), "{what}");
        let (gpu, cpu) = (numbers(gpu), numbers(cpu));
        let largest = cpu.iter().fold(1e-6, |most: f64, number| most.max(number.abs()));
        assert!(cpu.iter().any(|&number| number != 0.0), "{what}: {cpu:?}");
        for (one, other) in gpu.iter().zip(&cpu) {
            assert!((one - other).abs() <= TOLERANCE * largest, "{what}: {one} {other}");
        }
    }
}

#[test]
fn given_wgpu_layers_of_many_kinds_give_what_the_cpu_gives() {
    let ids: Vec<u8> = [1_i64, 2, 3, 4, 5, 6, 7, 8, 9, 10].iter().flat_map(|id| id.to_le_bytes()).collect();
    let ids = Tensor::new(Datatype::Int64, vec![2, 5], ids).unwrap();
    for layout in ["torch", "burn"] {
        let [gpu, cpu] = both(&repository().join(format!("tests/fixtures/models/burn/layers-{layout}.toml")));
        let inputs = [ids.clone()];
        assert_alike(&gpu.run(&inputs).unwrap(), &cpu.run(&inputs).unwrap(), layout);
        let wrong = [Tensor::new(Datatype::Int64, vec![1, 1], 11_i64.to_le_bytes().to_vec()).unwrap()];
        let error = gpu.run(&wrong).unwrap_err();
        assert!(error.contains("index 11 is out of range for layer embed"), "{error}");
        // That was the request's fault.
        assert_eq!(gpu.fallback(), None);
    }
}

/// Shape of the input, layers, and the weights' names and shapes.
type Case<'a> = (&'a [usize], &'a str, &'a [(&'a str, &'a [usize])]);

#[test]
fn given_wgpu_each_layer_gives_what_the_cpu_gives() {
    let cases: &[Case<'_>] = &[
        (
            &[2, 3, 9, 9],
            "type = \"conv2d\"\nname = \"c\"\nout-channels = 4\nkernel = 3\nstride = 2\npadding = 1",
            &[("c.weight", &[4, 3, 3, 3]), ("c.bias", &[4])],
        ),
        (
            &[2, 4, 9, 9],
            "type = \"conv2d\"\nname = \"c\"\nout-channels = 4\nkernel = [3, 2]\ndilation = 2\ngroups = 2",
            &[("c.weight", &[4, 2, 3, 2]), ("c.bias", &[4])],
        ),
        (
            &[2, 3, 16],
            "type = \"conv1d\"\nname = \"c\"\nout-channels = 5\nkernel = 4\nbias = false",
            &[("c.weight", &[5, 3, 4])],
        ),
        (
            &[2, 3, 8, 8],
            "type = \"batch-norm\"\nname = \"n\"",
            &[("n.weight", &[3]), ("n.bias", &[3]), ("n.running_mean", &[3]), ("n.running_var", &[3])],
        ),
        (&[2, 5, 6], "type = \"layer-norm\"\nname = \"n\"", &[("n.weight", &[6]), ("n.bias", &[6])]),
        (&[3, 7], "type = \"linear\"\nname = \"l\"\nout-features = 11", &[("l.weight", &[11, 7]), ("l.bias", &[11])]),
        (
            &[2, 6, 4],
            "type = \"lstm\"\nname = \"r\"\nhidden = 5",
            &[
                ("r.weight_ih_l0", &[20, 4]),
                ("r.weight_hh_l0", &[20, 5]),
                ("r.bias_ih_l0", &[20]),
                ("r.bias_hh_l0", &[20]),
            ],
        ),
        (
            &[2, 6, 4],
            "type = \"gru\"\nname = \"r\"\nhidden = 5\noutput = \"last\"\nreverse = true",
            &[
                ("r.weight_ih_l0", &[15, 4]),
                ("r.weight_hh_l0", &[15, 5]),
                ("r.bias_ih_l0", &[15]),
                ("r.bias_hh_l0", &[15]),
            ],
        ),
        (
            &[2, 6, 8],
            "type = \"attention\"\nname = \"a\"\nheads = 2\ncausal = true",
            &[
                ("a.in_proj_weight", &[24, 8]),
                ("a.in_proj_bias", &[24]),
                ("a.out_proj.weight", &[8, 8]),
                ("a.out_proj.bias", &[8]),
            ],
        ),
        (&[2, 8], "type = \"relu\"", &[]),
        (&[2, 8], "type = \"silu\"", &[]),
        (&[2, 8], "type = \"sigmoid\"", &[]),
        (&[2, 8], "type = \"tanh\"", &[]),
        (&[2, 8], "type = \"gelu\"", &[]),
        (&[2, 8], "type = \"gelu\"\napproximate = true", &[]),
        (&[2, 8], "type = \"leaky-relu\"", &[]),
        (&[2, 8], "type = \"softmax\"", &[]),
        (&[2, 8], "type = \"log-softmax\"", &[]),
        (&[2, 3, 8, 8], "type = \"max-pool2d\"\nkernel = 3\nstride = 2\npadding = 1", &[]),
        (&[2, 3, 16], "type = \"max-pool1d\"\nkernel = 2", &[]),
        (&[2, 3, 8, 8], "type = \"avg-pool2d\"\nkernel = 3\npadding = 1\ncount-padding = false", &[]),
        (&[2, 3, 16], "type = \"avg-pool1d\"\nkernel = 4", &[]),
        (&[2, 3, 9, 9], "type = \"adaptive-avg-pool2d\"\nsize = 4", &[]),
        (&[2, 3, 9], "type = \"adaptive-avg-pool1d\"\nsize = 2", &[]),
        (&[2, 3, 8, 8], "type = \"global-avg-pool\"", &[]),
        (&[2, 3, 8, 8], "type = \"global-max-pool\"", &[]),
        (&[2, 3, 4], "type = \"flatten\"", &[]),
        (&[2, 3, 4], "type = \"reshape\"\nshape = [2, 6]", &[]),
        (&[2, 3, 4], "type = \"transpose\"\naxes = [0, 2, 1]", &[]),
        (&[2, 3, 4], "type = \"select\"\naxis = 1\nindex = -1", &[]),
        (&[2, 4], "type = \"add\"\ninputs = [\"x\", \"x\"]", &[]),
        (&[2, 4], "type = \"multiply\"\ninputs = [\"x\", \"x\"]", &[]),
        (&[2, 4], "type = \"concat\"\ninputs = [\"x\", \"x\"]", &[]),
        (&[2, 4], "type = \"dropout\"\nprobability = 0.5", &[]),
    ];
    for (shape, layer, weights) in cases {
        let axes: Vec<String> = shape[1..].iter().map(usize::to_string).collect();
        let [gpu, cpu] = made(&format!("[\"n\", {}]", axes.join(", ")), &format!("[[layer]]\n{layer}\n"), weights);
        let inputs = [floats(shape)];
        assert_alike(&gpu.run(&inputs).unwrap(), &cpu.run(&inputs).unwrap(), layer);
        assert_eq!(gpu.fallback(), None, "{layer}");
    }
}

#[test]
fn given_wgpu_workers_share_a_network_and_batches_give_what_each_request_alone_gets() {
    let [gpu, cpu] = both(&repository().join("config/digits/digits.toml"));
    let (gpu, cpu) = (Arc::new(gpu), Arc::new(cpu));
    let images = |rows: usize, shift: usize| {
        let bytes = (0..rows * 28 * 28).map(|place| ((place + shift) * 31 % 251) as u8).collect();
        Rows { rows: rows as u32, tensors: [Tensor::new(Datatype::Uint8, vec![rows, 28, 28], bytes).unwrap()].into() }
    };
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (gpu, cpu, images) = (gpu.clone(), cpu.clone(), &images);
            scope.spawn(move || {
                let mut predictor = Predictor::new(gpu);
                for round in 0..10 {
                    let requests = [images(1 + worker, round), images(2, round + worker), images(3, worker)];
                    for (request, given) in requests.iter().zip(predictor.compute(&requests).unwrap()) {
                        assert_alike(&given.unwrap().tensors, &cpu.run(&request.tensors).unwrap(), "digits");
                    }
                }
            });
        }
    });
    assert_eq!(gpu.fallback(), None);
}

#[test]
fn given_wgpu_given_models_trained_networks_give_what_the_cpu_gives() {
    let models = PathBuf::from(std::env::var_os("CAMSHAFT_MODELS").unwrap()).join("burn");
    let fixtures = repository().join("tests/fixtures/models/burn");
    let dir = tempfile::tempdir().unwrap();
    let images = floats(&[3, 1, 28, 28]);
    for (manifest, weights, inputs) in [
        ("mnist-safetensors.toml", "mnist.safetensors", images.clone()),
        ("mnist-pt.toml", "mnist.pt", images.clone()),
        ("mnist-web.toml", "mnist-inference-web.bpk", images),
        ("modern-lstm.toml", "modern-lstm.mpk", floats(&[2, 10, 1])),
    ] {
        std::fs::copy(fixtures.join(manifest), dir.path().join(manifest)).unwrap();
        std::fs::copy(models.join(weights), dir.path().join(weights)).unwrap();
        let [gpu, cpu] = both(&dir.path().join(manifest));
        let inputs = [inputs];
        assert_alike(&gpu.run(&inputs).unwrap(), &cpu.run(&inputs).unwrap(), manifest);
        assert_eq!(gpu.fallback(), None, "{manifest}");
    }
}
