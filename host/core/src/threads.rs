//! Who starts threads: packages say what a thread does, and the process that has to end it starts it.
use std::fmt;
use std::io;
use std::sync::Arc;

/// What a thread does.
pub type Body = Box<dyn FnOnce() + Send>;

/// Starts threads by name. Whoever made it joins them at the end.
#[derive(Clone)]
pub struct Spawner(Arc<dyn Fn(&'static str, Body) -> io::Result<()> + Send + Sync>);

impl Spawner {
    pub fn new(spawn: impl Fn(&'static str, Body) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(spawn))
    }

    /// Threads that nobody joins.
    pub fn detached() -> Self {
        Self::new(|name, body| std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop))
    }

    /// # Errors
    /// No thread can be started.
    pub fn spawn(&self, name: &'static str, body: Body) -> io::Result<()> {
        (self.0)(name, body)
    }
}

/// Does something that recurses deeply, on a stack of this many bytes, while the caller waits. `None`: no thread can be started, or it
/// panicked.
pub(crate) fn on_stack<T: Send>(bytes: usize, act: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("deep".to_owned()).stack_size(bytes).spawn_scoped(scope, act);
        thread.ok()?.join().ok()
    })
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawner")
    }
}
