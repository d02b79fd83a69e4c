//! The fuzz targets, by name: everything that reads what others wrote.
#![forbid(unsafe_code)]

mod served;
mod tokenizers;

/// A parser under test. It panics if it finds what must not be.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Also the name of its folder in `fuzz/corpus`.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target { name: "answer", run: camshaft_core::family::fuzz::answer },
    Target { name: "configuration", run: camshaft::fuzz::configuration },
    Target { name: "connection", run: served::connection },
    Target { name: "event", run: camshaft_api::fuzz::event },
    Target { name: "gbnf", run: camshaft_core::grammar::fuzz::gbnf },
    Target { name: "gguf", run: camshaft_engine::fuzz::gguf },
    Target { name: "request", run: served::request },
    Target { name: "schema", run: camshaft_core::grammar::fuzz::schema },
    Target { name: "segments", run: camshaft_engine::disk::fuzz::segments },
    Target { name: "sidecar", run: camshaft_policy::fuzz::sidecar },
    Target { name: "tokenizer", run: tokenizers::text },
];

#[cfg(test)]
mod tests;
