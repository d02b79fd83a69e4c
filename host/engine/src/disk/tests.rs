use std::fs;
use std::path::{Path, PathBuf};

use camshaft_core::adapters::AdapterSet;
use camshaft_core::ids::{AdapterDigest, TenantId, Token};
use camshaft_core::limits;
use camshaft_core::segments::{Namespace, State};
use proptest::prelude::*;

use super::*;

fn options(dir: &Path, capacity_bytes: u64) -> DiskOptions {
    let layout = Layout { model: "ab".repeat(32), context: "f16".to_owned() };
    let room = room(dir);
    DiskOptions { room, capacity_bytes, layout, spawner: Spawner::detached() }
}

fn room(dir: &Path) -> Arc<DiskRoom> {
    DiskRoom::new(dir.to_owned(), 1 << 20).into()
}

fn info(n: u32) -> SegmentInfo {
    let tokens: Vec<Token> = (0..10 + n).map(|i| Token(i * n)).collect();
    SegmentInfo { namespace: Namespace::Tenant(TenantId::from("t")), tokens: tokens.into(), start: n }
}

fn state(n: u32) -> State {
    State::new((0..200 + n).map(|i| (i * 31 + n) as u8).collect())
}

/// Writes segments 0 to `count` and closes the tier.
fn filled(dir: &Path, count: u32) {
    let (mut tier, found) = DiskTier::open(&options(dir, 1 << 20)).unwrap();
    assert!(found.is_empty());
    (0..count).for_each(|n| tier.put(SegmentId(n.into()), &info(n), &state(n)));
    for n in 0..count {
        assert_eq!(tier.get(SegmentId(n.into())), Some(state(n)), "a queued segment can be read, too");
    }
}

/// Waits until everything that was put is written or refused.
fn wait_for_writer(tier: &mut DiskTier) {
    while !tier.pending.is_empty() {
        tier.apply_writer_events();
        std::thread::yield_now();
    }
}

fn data_file(dir: &Path) -> PathBuf {
    let layout = fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    directory::data_file(&layout, directory::data_files(&layout).unwrap()[0])
}

#[test]
fn segments_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 5);
    let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    assert_eq!(found.len(), 5);
    for (n, (segment, found)) in (0..).zip(found) {
        assert_eq!((found, tier.get(segment)), (info(n), Some(state(n))));
    }
    let shared = SegmentInfo { namespace: Namespace::Shared, ..info(9) };
    tier.put(SegmentId(77), &shared, &state(9));
    drop(tier);
    let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    assert_eq!((found.len(), &found[5].1), (6, &shared));
    assert_eq!(tier.get(found[5].0), Some(state(9)));
    let report = report(dir.path(), true).unwrap();
    assert_eq!((report[0].segments, report[0].data_files, report[0].damage.len()), (6, 2, 0));
}

#[test]
fn regression_a_named_namespace_is_no_tenants_own() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    let of = |namespace| SegmentInfo { namespace, ..info(3) };
    let keyed = Namespace::Tenant("t".into()).keyed("t");
    let adapted = keyed.under(&AdapterSet::new([(AdapterDigest::new([7; 32]), 0.5)]));
    let whole = [Namespace::Tenant("t".into()), Namespace::Named("t".into()), Namespace::Shared];
    let written: Vec<SegmentInfo> = whole.into_iter().chain([keyed, adapted]).map(of).collect();
    (0..).zip(&written).for_each(|(n, info)| tier.put(SegmentId(n), info, &state(3)));
    drop(tier);
    let (_, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    assert!(found.iter().map(|(_, info)| info).eq(&written));
}

#[test]
fn what_was_computed_under_adapters_is_found_under_the_same_ones_only() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    let adapter = |digest: u8, scale| (AdapterDigest::new([digest; 32]), scale);
    let of = |adapters: Vec<_>| SegmentInfo {
        namespace: Namespace::Tenant("t".into()).under(&AdapterSet::new(adapters)),
        ..info(3)
    };
    let most = (0..limits::ADAPTERS_OF_REQUEST).map(|n| adapter(n as u8, 0.5)).collect();
    let mut written = vec![
        of(vec![]),
        of(vec![adapter(1, 1.0)]),
        of(vec![adapter(1, 0.5)]),
        of(vec![adapter(2, 1.0)]),
        of(vec![adapter(1, 1.0), adapter(2, -1.0)]),
        of(most),
    ];
    (0..).zip(&written).for_each(|(n, info)| tier.put(SegmentId(n), info, &state(3)));
    // More than a request may have is not written.
    let too_many = (0..=limits::ADAPTERS_OF_REQUEST).map(|n| adapter(n as u8, 0.5)).collect();
    tier.put(SegmentId(99), &of(too_many), &state(3));
    drop(tier);
    let (_, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    let mut found: Vec<SegmentInfo> = found.into_iter().map(|(_, info)| info).collect();
    for all in [&mut written, &mut found] {
        all.sort_by(|one, other| one.namespace.cmp(&other.namespace));
    }
    assert_eq!(found, written);
}

#[test]
fn regression_a_data_file_that_shrinks_loses_its_segments_and_not_the_process() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 3);
    let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    assert_eq!(tier.get(found[0].0), Some(state(0)));
    fs::File::options().write(true).open(data_file(dir.path())).unwrap().set_len(100).unwrap();
    assert!(found.iter().all(|&(segment, _)| tier.get(segment).is_none()));
}

#[test]
fn regression_damage_is_found_once_and_what_replaces_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 3);
    let path = data_file(dir.path());
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(200).position(|window| *window == state(1)[..200]).unwrap();
    bytes[at + 100] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(report(dir.path(), true).unwrap()[0].damage.len(), 1);
    let segments = |found: &[(SegmentId, SegmentInfo)]| found.iter().map(|(_, info)| info.clone()).collect::<Vec<_>>();
    let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    assert_eq!(segments(&found), [info(0), info(1), info(2)]);
    assert_eq!(found.iter().filter(|(segment, _)| tier.get(*segment).is_some()).count(), 2);
    drop(tier);
    assert_eq!(report(dir.path(), true).unwrap()[0].damage, [""; 0], "it is known");
    // It is computed again, which makes other pieces of it.
    let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    assert_eq!(segments(&found), [info(0), info(2)]);
    tier.put(SegmentId(10), &info(1), &state(1));
    drop(tier);
    let before = report(dir.path(), true).unwrap();
    assert_eq!((before[0].segments, before[0].damage.len()), (3, 0));
    for _ in 0..3 {
        let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
        assert_eq!(segments(&found), [info(0), info(2), info(1)]);
        assert!(found.iter().all(|(segment, _)| tier.get(*segment).is_some()));
    }
    assert_eq!(report(dir.path(), true).unwrap(), before, "nothing grows");
}

#[test]
fn regression_the_newest_record_of_a_segment_wins() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 2);
    let (mut tier, _) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    tier.put(SegmentId(10), &info(0), &state(9));
    drop(tier);
    let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    assert_eq!(found.iter().map(|(_, info)| info.clone()).collect::<Vec<_>>(), [info(1), info(0)]);
    assert_eq!(tier.get(found[1].0), Some(state(9)));
}

#[test]
fn regression_what_is_queued_is_written_before_the_tier_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open_with(&options(dir.path(), 1 << 20), 2000).unwrap();
    (0..300).for_each(|n| tier.put(SegmentId(n.into()), &info(n), &state(n)));
    assert!(tier.lost.is_empty(), "all of them were queued");
    drop(tier);
    let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    assert_eq!(found.len(), 300);
    for (n, (segment, found)) in (0..).zip(found) {
        assert_eq!((found, tier.get(segment)), (info(n), Some(state(n))));
    }
}

#[test]
fn drops_the_queue_at_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("layout");
    let directory = Arc::new(SegmentDirectory::open(&path).unwrap());
    let sizes = Sizes { capacity: 1 << 20, file: 1 << 20 };
    let writer = Writer::new(directory.clone(), room(dir.path()), sizes, VecDeque::new());
    let (jobs, job_rx) = crossbeam_channel::bounded(8);
    let (event_tx, events) = crossbeam_channel::bounded(8);
    for n in 0..5 {
        let job = writer::WriteJob { segment: SegmentId(n.into()), info: info(n), state: state(n) };
        jobs.send(writer::Job::Write(job)).unwrap();
    }
    drop(jobs);
    writer.shared.deadline.set(Instant::now()).unwrap();
    writer.run(&job_rx, &event_tx);
    drop(event_tx);
    assert!(events.iter().all(|event| matches!(event, WriterEvent::NotWritten(_))));
    assert_eq!(directory::data_files(&path).unwrap(), Vec::<u64>::new());
}

/// What the closure hashes on this thread, in bytes.
fn hashed<T>(act: impl FnOnce() -> T) -> (usize, T) {
    record::HASHED_BYTES.set(0);
    let done = act();
    (record::HASHED_BYTES.get(), done)
}

#[test]
fn regression_a_segment_is_hashed_once_when_it_is_written_and_once_when_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let layout = options(dir.path(), 1 << 20).layout.directory();
    let directory = Arc::new(SegmentDirectory::open(&dir.path().join(layout)).unwrap());
    let sizes = Sizes { capacity: 1 << 20, file: 1 << 20 };
    let writer = Writer::new(directory, room(dir.path()), sizes, VecDeque::new());
    let (jobs, job_rx) = crossbeam_channel::bounded(1);
    let (event_tx, _events) = crossbeam_channel::bounded(1);
    let large = State::new(vec![7; 100_000]);
    let job = writer::WriteJob { segment: SegmentId(0), info: info(1), state: large.clone() };
    jobs.send(writer::Job::Write(job)).unwrap();
    drop(jobs);
    let (written, ()) = hashed(|| writer.run(&job_rx, &event_tx));
    let head = written - large.len();
    assert!(head < 1000, "the description's {head} bytes besides");
    let (scanned, opened) = hashed(|| DiskTier::open(&options(dir.path(), 1 << 20)));
    let (mut tier, found) = opened.unwrap();
    assert_eq!((scanned, found.len()), (head, 1), "a scan reads no states");
    let (read, state) = hashed(|| tier.get(found[0].0));
    assert_eq!((read, state), (large.len(), Some(large)));
}

#[test]
fn another_layout_finds_nothing_and_a_second_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 2);
    let mut other = options(dir.path(), 1 << 20);
    other.layout.context = "q8_0".to_owned();
    assert!(DiskTier::open(&other).unwrap().1.is_empty());
    let held = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    assert!(matches!(DiskTier::open(&options(dir.path(), 1 << 20)), Err(DiskError::InUse(_))));
    assert!(matches!(clear(dir.path()), Err(DiskError::InUse(_))));
    drop(held);
    assert_eq!(clear(dir.path()).unwrap(), 2);
    assert!(DiskTier::open(&options(dir.path(), 1 << 20)).unwrap().1.is_empty());
}

#[test]
fn regression_clear_removes_nothing_that_is_not_a_cache() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(DiskTier::open(&options(dir.path(), 1 << 20)).unwrap());
    let foreign = |name: &str, file: &str, content: &[u8]| {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join(file), content).unwrap();
        path.join(file)
    };
    let kept = [
        foreign("0123456789abcdef", "letter", b"to somebody"),
        foreign("fedcba9876543210", "key", b"of a door"),
        elsewhere.path().join("key"),
    ];
    fs::write(&kept[2], [7; 32]).unwrap();
    let link = dir.path().join("1111111111111111");
    std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
    assert_eq!(clear(dir.path()).unwrap(), 1);
    assert!(kept.iter().all(|path| path.exists()) && link.exists());
}

#[test]
fn removes_the_oldest_data_file_past_the_capacity_and_reports_its_segments_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open_with(&options(dir.path(), 2000), 700).unwrap();
    let mut lost = Vec::new();
    for n in 0..30 {
        tier.put(SegmentId(n), &info(1), &state(1));
    }
    wait_for_writer(&mut tier);
    tier.lost(&mut lost);
    let bytes: u64 = fs::read_dir(data_file(dir.path()).parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".data"))
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert!(bytes <= 2000 && bytes > 1000, "{bytes}");
    let kept: Vec<u64> = (0..30).filter(|&n| tier.get(SegmentId(n)).is_some()).collect();
    assert_eq!(kept.len() + lost.len(), 30);
    assert!(kept.contains(&29) && lost.contains(&SegmentId(0)));
    // A segment that exceeds the capacity is not written.
    let (mut tier, _) = DiskTier::open_with(&options(&dir.path().join("small"), 100), 700).unwrap();
    tier.put(SegmentId(0), &info(1), &state(1));
    wait_for_writer(&mut tier);
    lost.clear();
    tier.lost(&mut lost);
    assert_eq!((lost, tier.get(SegmentId(0))), (vec![SegmentId(0)], None));
}

#[test]
fn regression_the_layouts_of_earlier_settings_give_their_room() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 5);
    let before: u64 = report(dir.path(), false).unwrap().iter().map(|one| one.bytes).sum();
    let mut other = options(dir.path(), 1 << 20);
    other.layout.context = "q8_0".to_owned();
    let room = Arc::new(DiskRoom::new(dir.path().to_owned(), before + 400));
    other.room = room.clone();
    let (mut tier, _) = DiskTier::open(&other).unwrap();
    tier.put(SegmentId(0), &info(1), &state(1));
    wait_for_writer(&mut tier);
    assert_eq!(report(dir.path(), false).unwrap().len(), 2, "there is room for both");
    tier.put(SegmentId(1), &info(1), &state(1));
    wait_for_writer(&mut tier);
    drop(tier);
    let left = report(dir.path(), false).unwrap();
    assert_eq!(left.iter().map(|one| one.segments).collect::<Vec<_>>(), [2], "the earlier one is gone");
    // A smaller capacity is kept from the start on.
    other.capacity_bytes = 10;
    drop(DiskTier::open(&other).unwrap());
    assert_eq!(report(dir.path(), false).unwrap()[0].bytes, 0);
}

#[test]
fn a_disk_that_cannot_be_written_loses_segments_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
    // Root may write to any directory, so remove it instead of its permissions.
    fs::remove_dir_all(dir.path()).unwrap();
    tier.put(SegmentId(0), &info(0), &state(0));
    wait_for_writer(&mut tier);
    let mut lost = Vec::new();
    tier.lost(&mut lost);
    assert_eq!(lost, [SegmentId(0)]);
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(DiskTier::open(&options(file.path(), 1)), Err(DiskError::Io { .. })));
}

#[test]
fn a_changed_key_invalidates_all_segments() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 3);
    fs::write(data_file(dir.path()).with_file_name("key"), [7; 32]).unwrap();
    assert!(DiskTier::open(&options(dir.path(), 1 << 20)).unwrap().1.is_empty());
    assert!(!report(dir.path(), true).unwrap()[0].damage.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn never_returns_a_changed_or_truncated_segment(place in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), 6);
        let path = data_file(dir.path());
        let mut bytes = fs::read(&path).unwrap();
        let at = place.index(bytes.len());
        let longest_record = bytes.len() as u64 / 6 + 100;
        if cut { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
        fs::write(&path, &bytes).unwrap();
        let damaged = report(dir.path(), true).unwrap().remove(0);
        let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
        let mut good = 0;
        for (n, (segment, found)) in (0..).zip(&found) {
            prop_assert_eq!(found, &info(n));
            match tier.get(*segment) {
                Some(read) => {
                    prop_assert_eq!(&read[..], &state(n)[..]);
                    good += 1;
                }
                None => prop_assert!(!cut),
            }
        }
        prop_assert_eq!(good, damaged.segments);
        // A cut between two records leaves an intact file.
        prop_assert!(good < 6 && (cut || !damaged.damage.is_empty()));
        // Segments before the damage are still there, and new ones can be written.
        prop_assert!(good >= at as u64 / longest_record, "{good} before {at}");
        tier.put(SegmentId(100), &info(8), &state(8));
        drop(tier);
        let (mut tier, found) = DiskTier::open(&options(dir.path(), 1 << 20)).unwrap();
        let last = found.last().unwrap();
        prop_assert_eq!(&last.1, &info(8));
        prop_assert_eq!(tier.get(last.0), Some(state(8)));
    }
}

#[test]
fn regression_a_pipe_in_the_directory_is_refused_and_waits_for_nobody() {
    for name in ["key", "lock", "segments-000001.data"] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), 1);
        let path = data_file(dir.path()).with_file_name(name);
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (say, said) = crossbeam_channel::bounded(1);
        let options = options(dir.path(), 1 << 20);
        std::thread::spawn(move || say.send(DiskTier::open(&options).map(drop)));
        let opened = said.recv_timeout(Duration::from_secs(30)).expect("it waits for nobody");
        let Err(DiskError::Io { source, .. }) = opened else { panic!("{name}: {opened:?}") };
        assert_eq!(source.to_string(), "not a regular file", "{name}");
    }
}

#[test]
fn regression_what_is_merely_called_like_a_data_file_turns_nothing_off() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 2);
    for name in ["segments-77.data", "segments-18446744073709551615.data"] {
        fs::create_dir(data_file(dir.path()).with_file_name(name)).unwrap();
    }
    assert_eq!(DiskTier::open(&options(dir.path(), 1 << 20)).unwrap().1.len(), 2);
}

#[test]
fn a_full_tier_loses_its_oldest_part_and_not_everything() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tier, _) = DiskTier::open(&options(dir.path(), 16 << 10)).unwrap();
    (0..100).for_each(|n| tier.put(SegmentId(n), &info(1), &state(1)));
    wait_for_writer(&mut tier);
    let bytes = report(dir.path(), false).unwrap()[0].bytes;
    assert!(bytes > 12 << 10 && bytes <= 16 << 10, "{bytes}");
}
