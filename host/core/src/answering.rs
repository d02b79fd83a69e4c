//! Answers that may come later: those of policies that take long, for which nobody's thread should wait.
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// An answer that is there at once, or that is waited for. Dropping it gives up.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The answer, if it is there at once.
///
/// # Errors
/// The answer is not there yet.
pub fn at_once<T>(mut answering: Answering<'_, T>) -> Result<T, Answering<'_, T>> {
    match answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Ok(answer),
        Poll::Pending => Err(answering),
    }
}

/// Blocks the thread until the answer is there.
pub fn wait<T>(answering: impl Future<Output = T>) -> T {
    let mut answering = pin!(answering);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match answering.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            // A wake-up before this makes it return at once.
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::*;

    /// Ready when something was received; tells the waker to whoever will send it.
    fn later(received: Receiver<u32>, waker: Arc<Mutex<Option<Waker>>>) -> Answering<'static, u32> {
        Box::pin(std::future::poll_fn(move |context| match received.try_recv() {
            Ok(number) => Poll::Ready(number),
            Err(_) => {
                *waker.lock().unwrap() = Some(context.waker().clone());
                Poll::Pending
            }
        }))
    }

    #[test]
    fn an_answer_that_is_there_takes_no_waiting() {
        assert_eq!(at_once(Box::pin(std::future::ready(7))).ok(), Some(7));
        assert_eq!(wait(std::future::ready(7)), 7);
    }

    #[test]
    fn a_thread_waits_for_an_answer_that_comes_later() {
        let (send, received) = sync_channel(1);
        let waker = Arc::default();
        let answering = at_once(later(received, Arc::clone(&waker))).expect_err("it is not there yet");
        let answer = thread::spawn(move || {
            send.send(9).unwrap();
            loop {
                if let Some(waker) = waker.lock().unwrap().take() {
                    waker.wake();
                    return;
                }
                thread::yield_now();
            }
        });
        assert_eq!(wait(answering), 9);
        answer.join().unwrap();
    }
}
