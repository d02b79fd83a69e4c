//! The thread that has a process: starts it, hears what it says, and waits for its end.
use std::convert::Infallible;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{Builder, JoinHandle};

use camshaft_engine::{LoadProgress, ModelMark};
use camshaft_policy::{PolicyHost, Replication};
use camshaft_process::{frames, spawn};
use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::process::Pid;

use super::super::child::{Surroundings, run_here};
use super::super::{Loaded, Order, ROLE, Setup, Told};
use super::{Given, LOAD, ORDERS, Running, lock};
use crate::environment;
use crate::error::Failure;
use crate::logging::LogHandle;
use crate::own_program::own_program;
use crate::progress::LoadBar;

/// Who keeps a process: starts it, hears what it says, and waits for its end.
pub(super) struct Keeper {
    pub(super) model: String,
    pub(super) policies: Option<Arc<PolicyHost>>,
    pub(super) log: LogHandle,
    /// Its number among those that have copies of policies.
    pub(super) process: u64,
    pub(super) bar: LoadBar,
}

pub(super) type Started = Sender<Result<(Arc<Running>, Option<ModelMark>), Failure>>;

impl Keeper {
    pub(super) fn keep(self, setup: &Setup, here: Option<Surroundings>, feed: Option<Replication>, started: &Started) {
        let failed = |error: io::Error| Failure::internal(&error);
        let (computes, control) = match begin(here) {
            Ok(begun) => begun,
            // Whoever waits for it is told.
            Err(error) => return drop(started.send(Err(failed(error)))),
        };
        let Loaded { mark, sha256, tensors } = match self.introduce(&control, setup) {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(failure)) => {
                computes.end();
                return drop(started.send(Err(failure)));
            }
            Err(error) => {
                drop(control);
                let failure = match computes {
                    Computes::Process(child) => Failure::of_process(&setup.job.config, "computes for", child, &error),
                    Computes::Thread(_) => failed(error),
                };
                return drop(started.send(Err(failure)));
            }
        };
        let (orders, given) = bounded(ORDERS);
        let pid = match &computes {
            Computes::Process(child) => i32::try_from(child.id()).ok().and_then(Pid::from_raw),
            Computes::Thread(_) => None,
        };
        let running = Arc::new(Running {
            orders,
            waiting: Mutex::default(),
            process: self.process,
            pid,
            is_gone: Mutex::new(false),
            has_ended: AtomicBool::new(false),
            has_lost_device: AtomicBool::new(false),
            sha256,
            tensors: tensors.map(|tensors| *tensors),
        });
        let weak = Arc::downgrade(&running);
        let sends = control.try_clone().and_then(|said| {
            let weak = weak.clone();
            let send = move || send_orders(control, &given, &weak);
            Builder::new().name(format!("orders-{}", self.model)).spawn(send)?;
            Ok(said)
        });
        let mut said = match sends {
            Ok(said) => said,
            Err(error) => {
                running.end(computes);
                return drop(started.send(Err(failed(error))));
            }
        };
        let (ends, ended) = bounded(0);
        let follower = self.log.follow({
            let running = weak.clone();
            move |directives| {
                running.upgrade().inspect(|running| running.tell(Order::Level(directives.to_owned())));
            }
        });
        if let Some(feed) = feed {
            let running = weak.clone();
            let tell = move || feed_policies(feed, &running, &ended);
            // Without it, policies stay as they are.
            if let Err(error) = Builder::new().name(format!("policies-{}", self.model)).spawn(tell) {
                tracing::error!(model = self.model, %error, "a process hears of no change of policies");
            }
        }
        // Whoever waits for it has it now, and the process ends when nobody has it any more.
        drop(started.send(Ok((running, mark))));
        while let Ok(Some(told)) = frames::receive::<Told>(&mut said) {
            match told {
                Told::Reply(number, reply) => {
                    let asker = weak.upgrade().and_then(|running| lock(&running.waiting).remove(&number));
                    // Nobody may wait for it any more.
                    asker.map(|asker| asker.send(reply));
                }
                Told::Notes(notes) => {
                    self.policies.as_ref().inspect(|policies| policies.note(notes, self.process));
                }
                Told::DeviceLost => {
                    weak.upgrade().inspect(|running| running.has_lost_device.store(true, Ordering::SeqCst));
                }
                Told::Loading(_) | Told::Loaded(_) => {}
            }
        }
        drop((ends, follower));
        match weak.upgrade() {
            Some(running) => running.end(computes),
            None => computes.end(),
        }
        tracing::debug!(model = self.model, "what computed for the model has ended");
    }

    /// Tells the process what to load, and waits until it has.
    fn introduce(&self, mut control: &UnixStream, setup: &Setup) -> io::Result<Result<Loaded, Failure>> {
        control.set_read_timeout(Some(LOAD))?;
        frames::send(&mut control, setup)?;
        loop {
            match frames::receive::<Told>(&mut control)? {
                Some(Told::Loading(per_cent)) => {
                    let LoadProgress(tell) = self.bar.stage("loading");
                    if tell(per_cent as f32 / 100.0).is_break() {
                        return Err(io::Error::other("loading it was stopped"));
                    }
                }
                Some(Told::Loaded(loaded)) => {
                    control.set_read_timeout(None)?;
                    return Ok(loaded);
                }
                Some(_) => {}
                None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            }
        }
    }
}

/// Starts what computes. `here`: on threads of this process.
fn begin(here: Option<Surroundings>) -> io::Result<(Computes, UnixStream)> {
    let Some(around) = here else {
        let (child, control) = spawn(&own_program()?, ROLE, &environment::missing())?;
        return Ok((Computes::Process(child), control));
    };
    let (ours, its) = UnixStream::pair()?;
    let thread = Builder::new().name("computes".to_owned()).spawn(move || run_here(its, around))?;
    Ok((Computes::Thread(thread), ours))
}

/// Sends orders in their turn, until nobody has the process any more or it is gone.
fn send_orders(mut control: UnixStream, given: &Receiver<Given>, running: &Weak<Running>) {
    for (number, Given { order, with, answer }) in (1..).zip(given) {
        if let (Some(answer), Some(running)) = (answer, running.upgrade()) {
            lock(&running.waiting).insert(number, answer);
            if running.has_ended.load(Ordering::SeqCst) {
                lock(&running.waiting).clear();
            }
        }
        let with: Vec<BorrowedFd<'_>> = with.iter().map(AsFd::as_fd).collect();
        if frames::send_with(&mut control, &order, &with).is_err() {
            break;
        }
    }
    // It ends when it has written what it has to write.
    let _ = control.shutdown(Shutdown::Write);
}

/// Tells a process of policies as they change, until it has ended.
fn feed_policies(mut feed: Replication, running: &Weak<Running>, ended: &Receiver<Infallible>) {
    while let Some(done) = feed.wait(ended) {
        if let (Some(update), Some(running)) = (feed.update(), running.upgrade())
            && running.ask(Order::Policies(Box::new(update)), None).is_err()
        {
            return;
        }
        drop(done);
    }
}

/// A child, or a thread that does what one would.
pub(super) enum Computes {
    Process(Child),
    Thread(JoinHandle<io::Result<()>>),
}

impl Computes {
    /// Waits for its end. It has closed its socket.
    pub(super) fn end(self) {
        match self {
            Self::Process(mut child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Self::Thread(thread) => {
                // What a panic was about is logged.
                if let Ok(Err(error)) = thread.join() {
                    tracing::error!(%error, "the threads that compute for a model have ended");
                }
            }
        }
    }
}
