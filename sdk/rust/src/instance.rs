//! Holds the policy of an instance, from `configure` on.
use std::any::Any;
use std::cell::RefCell;

use serde::de::DeserializeOwned;

thread_local! {
    // A component has one thread and one policy. With `Any`, plugins need not declare a cell of their own type.
    static POLICY: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// The plugin's version, filled in by the `export_…!` macros.
pub trait Package {
    const VERSION: &'static str;
}

/// Creates the policy from the host's settings text and stores it.
pub(crate) fn configure<P: 'static>(settings: String, make: fn(String) -> Result<P, String>) -> Result<(), String> {
    let policy = make(settings)?;
    POLICY.with_borrow_mut(|slot| *slot = Some(Box::new(policy)));
    Ok(())
}

/// Calls `call` with the policy. Panics, which the host sees as a fault, if the instance was not configured.
pub(crate) fn with<P: 'static, R>(call: impl FnOnce(&mut P) -> R) -> R {
    POLICY.with_borrow_mut(|slot| match slot.as_mut().and_then(|policy| policy.downcast_mut::<P>()) {
        Some(policy) => call(policy),
        None => panic!("called before it was configured"),
    })
}

/// Parses the settings' text for a constructor of a policy.
pub(crate) fn parsed<S: DeserializeOwned, P>(text: &str, new: fn(S) -> Result<P, String>) -> Result<P, String> {
    new(crate::settings::parse(text)?)
}

/// Implements the `plugin` export, which is the same for every hook, for a hook's `Component`. `make` turns the settings'
/// text into the policy.
macro_rules! plugin_exports {
    () => {
        $crate::instance::plugin_exports!(|text| $crate::instance::parsed(&text, P::new));
    };
    ($make:expr) => {
        impl<P: Policy, V: $crate::instance::Package> $crate::bindings::plugin::Guest for Component<P, V> {
            fn describe() -> $crate::bindings::plugin::Description {
                $crate::bindings::plugin::Description {
                    name: P::NAME.to_owned(),
                    version: V::VERSION.to_owned(),
                    settings_schema: P::SCHEMA.to_owned(),
                }
            }

            fn configure(settings: String, setup: &$crate::bindings::host::context::Setup) -> Result<(), String> {
                $crate::instance::configure::<P>(settings, $make)?;
                $crate::instance::with(|policy: &mut P| policy.set_up(setup))
            }
        }
    };
}
pub(crate) use plugin_exports;

/// The body of every `export_…!` macro. It exports for WebAssembly, and only checks the type elsewhere, because native
/// linkers reject the names of the exported symbols.
#[doc(hidden)]
#[macro_export]
macro_rules! __export {
    ($hook:ident, $policy:ty $(, $optional:ident)*) => {
        const _: () = {
            struct ThisPackage;
            impl $crate::instance::Package for ThisPackage {
                const VERSION: &'static str = env!("CARGO_PKG_VERSION");
            }
            #[allow(dead_code)]
            type Exported = $crate::$hook::Component<$policy, ThisPackage>;
            #[cfg(not(target_family = "wasm"))]
            const _: fn() = $crate::$hook::Component::<$policy, ThisPackage>::exists;
            #[cfg(target_family = "wasm")]
    $crate::bindings::plugin::export!(Exported with_types_in $crate::bindings::plugin);
            #[cfg(target_family = "wasm")]
    $crate::bindings::$hook::export!(Exported with_types_in $crate::bindings::$hook);
            $(
                #[cfg(target_family = "wasm")]
                $crate::bindings::$optional::export!(Exported with_types_in $crate::bindings::$optional);
            )*
        };
    };
}
