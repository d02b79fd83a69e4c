//! What is done with an input of clients before a model takes it: its layout, its type, and its scale.
use camshaft_core::tensor::{Axis, Datatype, Number, Tensor, TensorSpec, volume};

use crate::manifest::{ImageLayout, PreprocessEntry};

/// A checked step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Preprocess {
    /// What clients send.
    pub(crate) client: TensorSpec,
    model: Datatype,
    layout: ImageLayout,
    scale: f64,
    /// One for all channels, or for each.
    mean: Vec<f64>,
    deviation: Vec<f64>,
}

impl Preprocess {
    /// `spec`: what the model takes.
    ///
    /// # Errors
    /// Says which key does not fit the input.
    pub(crate) fn new(entry: &PreprocessEntry, spec: &TensorSpec) -> Result<Self, String> {
        if !matches!(spec.datatype, Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64) {
            return Err(format!("is for floating-point numbers, the model takes {}", spec.datatype));
        }
        let channels = match spec.shape.len() {
            0 => None,
            rank @ 1..3 => Some(&spec.shape[rank - 1]),
            rank => Some(&spec.shape[rank - 3]),
        };
        let counts = |key: &str, list: &[f64]| match (list.len(), channels) {
            (0 | 1, _) => Ok(()),
            (count, Some(Axis::Fixed(channels))) if count == *channels => Ok(()),
            (count, Some(Axis::Fixed(channels))) => Err(format!("{key} must have 1 number or {channels}, got {count}")),
            (count, _) => Err(format!("{key} must have 1 number, as the channels are of any number, got {count}")),
        };
        counts("mean", &entry.mean)?;
        counts("deviation", &entry.deviation)?;
        if !entry.scale.is_finite() || entry.mean.iter().any(|mean| !mean.is_finite()) {
            return Err("scale and mean must be finite".to_owned());
        }
        if let Some(wrong) = entry.deviation.iter().find(|deviation| !deviation.is_finite() || **deviation == 0.0) {
            return Err(format!("deviation must be finite and not 0, got {wrong}"));
        }
        let rank = spec.shape.len();
        let shape = match entry.layout {
            ImageLayout::Chw => spec.shape.clone(),
            _ if rank < 3 => return Err(format!("layout is of images, the model takes {rank} axes")),
            ImageLayout::Hwc => {
                let (before, image) = spec.shape.split_at(rank - 3);
                [before, &image[1..], &image[..1]].concat()
            }
            ImageLayout::Hw if spec.shape[rank - 3] != Axis::Fixed(1) => {
                return Err("layout \"hw\" is of images with one channel".to_owned());
            }
            ImageLayout::Hw => [&spec.shape[..rank - 3], &spec.shape[rank - 2..]].concat(),
        };
        let client = TensorSpec { name: spec.name.clone(), datatype: entry.datatype.unwrap_or(spec.datatype), shape };
        let (scale, mean, deviation) = (entry.scale, entry.mean.clone(), entry.deviation.clone());
        Ok(Self { client, model: spec.datatype, layout: entry.layout, scale, mean, deviation })
    }

    /// Whether the first axis that clients send is another one to the model.
    pub(crate) fn moves_rows(&self) -> bool {
        match self.layout {
            ImageLayout::Chw => false,
            ImageLayout::Hwc => self.client.shape.len() < 4,
            ImageLayout::Hw => self.client.shape.len() < 3,
        }
    }

    /// The shape that the model takes.
    pub(crate) fn shape(&self, client: &[usize]) -> Vec<usize> {
        let rank = client.len();
        match self.layout {
            ImageLayout::Hwc if rank >= 3 => {
                let (before, image) = client.split_at(rank - 3);
                [before, &image[2..], &image[..2]].concat()
            }
            ImageLayout::Hw if rank >= 2 => [&client[..rank - 2], &[1], &client[rank - 2..]].concat(),
            _ => client.to_vec(),
        }
    }

    /// # Errors
    /// A number is too large for the type that the model takes.
    pub(crate) fn apply(&self, tensor: &Tensor) -> Result<Tensor, String> {
        let shape = self.shape(tensor.shape());
        let rank = shape.len();
        // Numbers of a channel that lie together, and how many channels there are.
        let (inner, channels) = match rank {
            0 => (1, 1),
            1 | 2 => (1, shape[rank - 1]),
            _ => (shape[rank - 2] * shape[rank - 1], shape[rank - 3]),
        };
        let pick = |list: &[f64], channel: usize, none: f64| match list {
            [] => none,
            [only] => *only,
            each => each.get(channel).copied().unwrap_or(none),
        };
        let mut bytes = Vec::with_capacity(volume(&shape).unwrap_or(0).saturating_mul(self.model.bytes()));
        let mut write = |number: f64, channel: usize| {
            let shifted = number * self.scale - pick(&self.mean, channel, 0.0);
            let number = shifted / pick(&self.deviation, channel, 1.0);
            match self.model.write(Number::Double(number), &mut bytes) {
                true => Ok(()),
                false => Err(format!("the number {number} is too large for {}", self.model)),
            }
        };
        if self.layout == ImageLayout::Hwc && inner > 0 && channels > 0 {
            let numbers: Vec<f64> = tensor.numbers().map(Number::to_f64).collect();
            for image in numbers.chunks_exact(inner * channels) {
                for channel in 0..channels {
                    for place in 0..inner {
                        write(image[place * channels + channel], channel)?;
                    }
                }
            }
        } else {
            for (at, number) in tensor.numbers().enumerate() {
                write(number.to_f64(), (at / inner) % channels)?;
            }
        }
        Tensor::new(self.model, shape, bytes).map_err(|error| error.to_string())
    }

    /// Bytes of what it makes, for an input of this shape.
    pub(crate) fn bytes(&self, client: &[usize]) -> Option<u64> {
        // As numbers of eight bytes, and as the model takes them.
        (volume(client)? as u64).checked_mul(16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(shape: &[usize]) -> TensorSpec {
        let mut axes: Vec<Axis> = shape.iter().copied().map(Axis::Fixed).collect();
        axes[0] = Axis::Any("batch".to_owned());
        TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: axes }
    }

    fn made(text: &str, shape: &[usize]) -> Result<Preprocess, String> {
        Preprocess::new(&toml::from_str(text).unwrap(), &spec(shape))
    }

    fn floats(tensor: &Tensor) -> Vec<f64> {
        tensor.numbers().map(Number::to_f64).collect()
    }

    #[test]
    fn bytes_of_an_image_become_normalised_channels() {
        let text = "datatype = \"UINT8\"\nlayout = \"hwc\"\nscale = 0.5\nmean = [1, 2]\ndeviation = [1, 4]";
        let step = made(text, &[0, 2, 1, 2]).unwrap();
        assert_eq!((step.client.dimensions(), step.client.datatype), (vec![-1, 1, 2, 2], Datatype::Uint8));
        let image = Tensor::new(Datatype::Uint8, vec![1, 1, 2, 2], vec![2, 4, 6, 12]).unwrap();
        let given = step.apply(&image).unwrap();
        assert_eq!((given.shape(), floats(&given)), ([1, 2, 1, 2].as_slice(), vec![0.0, 2.0, 0.0, 1.0]));
    }

    #[test]
    fn an_image_without_channels_gets_one() {
        let step = made("layout = \"hw\"\nmean = [1]", &[0, 1, 1, 2]).unwrap();
        assert_eq!(step.client.dimensions(), [-1, 1, 2]);
        let bytes = [3.0f32, 5.0].iter().flat_map(|number| number.to_le_bytes()).collect();
        let given = step.apply(&Tensor::new(Datatype::Fp32, vec![1, 1, 2], bytes).unwrap()).unwrap();
        assert_eq!((given.shape(), floats(&given)), ([1, 1, 1, 2].as_slice(), vec![2.0, 4.0]));
    }

    #[test]
    fn keys_that_do_not_fit_are_refused() {
        let check = |text: &str, shape: &[usize], words: &str| {
            let error = made(text, shape).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        check("mean = [1, 2, 3]", &[0, 2, 4, 4], "mean must have 1 number or 2, got 3");
        check("deviation = [1, 2]", &[0, 3], "deviation must have 1 number or 3, got 2");
        check("deviation = [0]", &[0, 3], "not 0");
        check("scale = inf", &[0, 3], "finite");
        check("layout = \"hwc\"", &[0, 3], "2 axes");
        check("layout = \"hw\"", &[0, 3, 4, 4], "one channel");
        let mut of_bytes = spec(&[0, 3]);
        of_bytes.datatype = Datatype::Uint8;
        assert!(Preprocess::new(&toml::from_str("").unwrap(), &of_bytes).unwrap_err().contains("UINT8"));
    }
}
