//! The bodies of OpenAI's and Anthropic's endpoints, and of the own ones beside them, as types. A request's type gives its parsing, its
//! bounds and its part of `/openapi.json` (see [`crate::wire::read`]); an answer's is written as it is, and described there, too.
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod errors;
pub(crate) mod generate;
pub(crate) mod generation;
pub(crate) mod logprobs;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod ranking;
pub(crate) mod responses;
pub(crate) mod tensors;
pub(crate) mod tokens;
pub(crate) mod values;

/// An enum of events, each with its type, which is also its name in the stream.
macro_rules! events {
    ($(#[$attribute:meta])* $events:ident { $($name:literal $event:ident { $($(#[$of:meta])* $field:ident: $type:ty),* $(,)? })* }) => {
        $(#[$attribute])*
        #[derive(Debug, Serialize, JsonSchema)]
        #[serde(tag = "type")]
        pub(crate) enum $events<'a> {
            $(#[serde(rename = $name)] $event { $($(#[$of])* $field: $type),* }),*
        }

        impl $events<'_> {
            pub(crate) fn name(&self) -> &'static str {
                match self {
                    $(Self::$event { .. } => $name),*
                }
            }
        }
    };
}

pub(crate) use events;
