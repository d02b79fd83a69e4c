//! Events of streams that have names.

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
