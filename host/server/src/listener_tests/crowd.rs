//! Which connections make room, and which are cut because all hold too much.
use super::*;

/// A connection of each of these tenants.
async fn taken_by(rooms: &Arc<Rooms>, tenants: &[&'static str]) -> Vec<Room> {
    let mut taken = Vec::new();
    for tenant in tenants {
        let room = rooms.take(times(LONG, LONG, LONG)).await;
        room.activity.let_in().set(&TenantId::from(*tenant));
        taken.push(room);
    }
    taken
}

#[tokio::test(start_paused = true)]
async fn regression_strangers_that_ask_again_and_again_make_room_before_others() {
    let rooms = Rooms::new(3);
    let (stranger, known) = (rooms.take(times(LONG, LONG, LONG)).await, rooms.take(times(LONG, LONG, LONG)).await);
    known.activity.let_in().set(&TenantId::from("a"));
    for _ in 0..10 {
        tokio::time::advance(QUIET / 2).await;
        // Both have just been answered.
        [&stranger, &known].iter().for_each(|room| drop(room.activity.begin(false, (0, 0))));
    }
    tokio::time::advance(QUIET * 9).await;
    drop(stranger.activity.begin(false, (0, 0)));
    assert_eq!(rooms.make_room().closed, 1);
    assert!(asked(&stranger), "it was asked although it is busy");
    assert!(!asked(&known), "it was quiet for long and keeps its place");
}

#[tokio::test(start_paused = true)]
async fn regression_the_tenant_with_the_most_connections_makes_room_however_often_it_asks() {
    let rooms = Rooms::new(4);
    let taken = taken_by(&rooms, &["one", "many", "many"]).await;
    taken.iter().for_each(|room| drop(room.activity.begin(false, (0, 0))));
    tokio::time::advance(QUIET * 9).await;
    taken[1..].iter().for_each(|room| drop(room.activity.begin(false, (0, 0))));
    let all = || taken.iter().map(asked).collect::<Vec<_>>();
    assert_eq!((rooms.make_room().closed, all()), (1, vec![false, true, false]));
    assert_eq!((rooms.make_room().closed, all()), (1, vec![false, true, true]));
    assert_eq!((rooms.make_room().closed, all()), (1, vec![true; 3]), "at last the one that was quiet for long");
}

/// A request that arrived whole and was answered.
fn served(activity: &Arc<Activity>) {
    let request = activity.begin(false, (0, 0));
    activity.arrived();
    drop(request);
}

#[tokio::test(start_paused = true)]
async fn regression_the_tenant_with_the_most_connections_makes_room_whatever_it_does() {
    let rooms = Rooms::new(7);
    let taken = taken_by(&rooms, &["many", "many", "many", "many", "one", "one"]).await;
    taken.iter().for_each(|room| served(&room.activity));
    tokio::time::advance(QUIET * 9).await;
    let many = |at: usize| &taken[at].activity;
    // Its request still arrives, its answer is not taken, the server works on it, it has just been answered.
    let _arriving = many(0).begin(false, (0, 0));
    let _stalled = many(1).send(1);
    tokio::time::advance(QUIET).await;
    let _works = many(2).begin(false, (0, 0));
    many(2).arrived();
    served(many(3));
    let all = || taken.iter().map(asked).collect::<Vec<_>>();
    // Of other tenants, what is quiet goes before requests are cut.
    let steps =
        [(3, "quiet"), (1, "stalled"), (4, "another's quiet"), (5, "another's quiet"), (2, "works"), (0, "arriving")];
    for (expected, what) in steps {
        assert!(!asked(&taken[expected]));
        assert_eq!(rooms.make_room().closed, 1);
        assert!(asked(&taken[expected]), "{what}: {:?}", all());
    }
    assert_eq!((rooms.make_room().closed, many(2).was_cut()), (0, false), "what the server works on is finished first");
}

#[tokio::test(start_paused = true)]
async fn regression_of_a_crowd_the_requests_that_came_last_go_first_and_no_other_tenants_work() {
    let rooms = Rooms::new(4);
    let mut taken = Vec::new();
    for tenant in ["many", "many", "one", "many"] {
        let room = rooms.take(times(LONG, LONG, LONG)).await;
        room.activity.let_in().set(&TenantId::from(tenant));
        let request = room.activity.begin(false, (0, 0));
        if tenant == "one" {
            room.activity.arrived();
        }
        taken.push((room, request));
        tokio::time::advance(QUIET).await;
    }
    let cut = || taken.iter().map(|(room, _)| room.activity.was_cut()).collect::<Vec<_>>();
    let steps = [[false, false, false, true], [false, true, false, true], [true, true, false, true]];
    for expected in steps {
        assert_eq!((rooms.make_room().closed, cut()), (1, expected.to_vec()));
    }
    assert_eq!(rooms.make_room().closed, 0, "another tenant's request is worked on");
}

#[tokio::test(start_paused = true)]
async fn regression_a_flood_of_strangers_takes_no_tenants_places() {
    let rooms = Rooms::new(4);
    let mut known = taken_by(&rooms, &["one", "one"]).await;
    known.iter().for_each(|room| served(&room.activity));
    let upload = known[1].activity.begin(false, (0, 0));
    let first = rooms.take(times(LONG, LONG, LONG)).await;
    tokio::time::advance(QUIET / 2).await;
    let mut strangers = vec![first, rooms.take(times(LONG, LONG, LONG)).await];
    assert_eq!(rooms.make_room().closed, 1, "strangers are no more than half: the tenant is a crowd");
    assert!(asked(&known[0]) && !strangers.iter().any(asked));
    drop(known.remove(0));
    strangers.push(rooms.take(times(LONG, LONG, LONG)).await);
    let strange = || strangers.iter().map(asked).collect::<Vec<_>>();
    assert_eq!((rooms.make_room().closed, strange()), (1, vec![true, false, false]), "the oldest first, however young");
    assert!(!asked(&known[0]));
    drop(upload);
}

#[tokio::test(start_paused = true)]
async fn regression_uploads_go_on_while_strangers_come_and_go() {
    let rooms = Rooms::new(5);
    let known = taken_by(&rooms, &["evil", "one"]).await;
    let arriving = |room: &Room| room.activity.begin(false, (0, 0));
    let mut uploads = vec![arriving(&known[1])];
    tokio::time::advance(QUIET * 9).await;
    uploads.push(arriving(&known[0]));
    let mut strangers = Vec::new();
    for _ in 0..3 {
        strangers.push(rooms.take(times(LONG, LONG, LONG)).await);
    }
    assert_eq!(rooms.make_room().closed, 0, "they have just begun, and the others are not missed less");
    tokio::time::advance(QUIET / 10).await;
    assert_eq!(rooms.make_room().closed, 1);
    assert!(asked(&strangers[0]) && !known.iter().any(asked));
}

#[tokio::test(start_paused = true)]
async fn regression_while_a_connection_ends_nobody_else_is_closed() {
    let rooms = Rooms::new(2);
    let known = taken_by(&rooms, &["one", "two"]).await;
    let _uploads: Vec<_> = known.iter().map(|room| room.activity.begin(false, (0, 0))).collect();
    tokio::time::advance(QUIET * 9).await;
    known[1].activity.cut();
    let waits = tokio::time::timeout(QUIET / 2, rooms.take(times(LONG, LONG, LONG)));
    waits.await.expect_err("it has not ended");
    assert!(!asked(&known[0]));
    let mut known = known.into_iter();
    let (first, second) = (known.next().unwrap(), known.next());
    let waiting = tokio::spawn({
        let rooms = rooms.clone();
        async move { rooms.take(times(LONG, LONG, LONG)).await }
    });
    drop(second);
    tokio::time::timeout(QUIET, waiting).await.expect("there is room").unwrap();
    assert!(!asked(&first));
    // One that does not end keeps nobody waiting for long.
    let late = taken_by(&Rooms::new(2), &["one", "two"]).await;
    late[1].activity.cut();
    assert!(late[1].rooms.is_ending_some());
    tokio::time::advance(QUIET).await;
    assert!(!late[1].rooms.is_ending_some());
}

#[tokio::test(start_paused = true)]
async fn regression_a_response_that_is_not_taken_is_not_taken_whatever_else_moves() {
    let rooms = Rooms::new(3);
    let taken = taken_by(&rooms, &["many", "many", "one"]).await;
    // The server works for the tenant with the most.
    let _works: Vec<_> = taken[..2].iter().map(|room| room.activity.begin(false, (0, 0))).collect();
    taken[..2].iter().for_each(|room| room.activity.arrived());
    for room in &taken[..2] {
        room.activity.close();
    }
    let _never_taken = taken[2].activity.send(1);
    for _ in 0..3 {
        assert_eq!(rooms.make_room().closed, 0);
        tokio::time::advance(QUIET * 2).await;
        served(&taken[2].activity);
    }
    assert_eq!((rooms.make_room().closed, taken[2].activity.was_cut()), (1, true));
}

#[tokio::test]
async fn regression_requests_that_hold_the_most_are_cut_strangers_first() {
    let rooms = Rooms::new(4);
    let times = times(LONG, LONG, LONG);
    let mut taken = Vec::new();
    for bytes in [10_000, 1000, 2000, 9000] {
        let room = rooms.take(times).await;
        let request = room.activity.begin(true, (0, bytes));
        taken.push((room, request));
    }
    // The first one holds the most, though no more than its tenant's part, and was let in; so was the last one.
    [(0, "a"), (3, "b")].iter().for_each(|(at, tenant)| taken[*at].0.activity.let_in().set(&TenantId::from(*tenant)));
    let cut = |rooms: &Rooms, limit: usize| {
        rooms.relieve(limit);
        taken.iter().map(|(room, _)| room.activity.was_cut()).collect::<Vec<_>>()
    };
    let all = rooms.held.bytes();
    assert_eq!(cut(&rooms, all), [false; 4]);
    assert_eq!(cut(&rooms, all - 1), [false, true, false, false], "of the strangers the oldest");
    drop(taken.remove(1));
    let cut = || taken.iter().map(|(room, _)| room.activity.was_cut()).collect::<Vec<_>>();
    rooms.relieve(1);
    assert_eq!(cut(), [true; 3]);
}

#[tokio::test]
async fn regression_a_tenant_that_holds_more_than_its_part_is_cut_before_strangers_that_do_not() {
    let rooms = Rooms::new(4);
    let mut taken = Vec::new();
    for tenant in [None, Some("a"), Some("a"), Some("b")] {
        let room = rooms.take(times(LONG, LONG, LONG)).await;
        tenant.iter().for_each(|tenant| room.activity.let_in().set(&TenantId::from(*tenant)));
        let request = room.activity.begin(true, (0, 0));
        // What may come counts with who said that it does.
        let trailers = (tenant == Some("a")).then(|| room.activity.expect_trailers());
        taken.push((room, request, trailers));
    }
    rooms.relieve(rooms.held.bytes() - 1);
    let cut = taken.iter().map(|(room, ..)| room.activity.was_cut()).collect::<Vec<_>>();
    assert_eq!(cut, [false, true, false, false]);
}

#[tokio::test]
async fn regression_strangers_that_hold_more_than_their_part_are_cut_although_there_is_room() {
    let rooms = Rooms::new(4);
    let mut taken = Vec::new();
    for (tenant, bytes) in [(None, 1000), (None, 2000), (Some("a"), 0)] {
        let room = rooms.take(times(LONG, LONG, LONG)).await;
        tenant.iter().for_each(|tenant| room.activity.let_in().set(&TenantId::from(*tenant)));
        let request = room.activity.begin(true, (0, bytes));
        taken.push((room, request));
    }
    let strange = taken[..2].iter().map(|(room, _)| room.activity.held().unwrap()).sum::<usize>();
    let told = Arc::new(Held::new(2 * strange, 1));
    let account = told.of_strangers();
    told.add(strange, &account);
    let exceeded = || tokio::time::timeout(QUIET / 10, told.exceeded());
    exceeded().await.expect_err("at their part");
    told.add(1, &account);
    exceeded().await.expect("past it");
    let cut = |limit| {
        rooms.relieve(limit);
        taken.iter().map(|(room, _)| room.activity.was_cut()).collect::<Vec<_>>()
    };
    assert_eq!(cut(2 * strange), [false; 3]);
    assert_eq!(cut(2 * strange - 2), [true, false, false], "the oldest");
}

#[tokio::test]
async fn regression_the_tenant_whose_connections_hold_the_most_is_cut_first() {
    let rooms = Rooms::new(4);
    let mut taken = Vec::new();
    // One of few requests each, of a tenant with many connections, and the only one of another tenant.
    for (tenant, bytes) in [("many", 1000), ("many", 1200), ("many", 1100), ("one", 1500)] {
        let room = rooms.take(times(LONG, LONG, LONG)).await;
        room.activity.let_in().set(&TenantId::from(tenant));
        let request = room.activity.begin(true, (0, bytes));
        taken.push((room, request));
    }
    let held: Vec<usize> = taken.iter().map(|(room, _)| room.activity.held().unwrap()).collect();
    let cut = |limit| {
        rooms.relieve(limit);
        taken.iter().map(|(room, _)| room.activity.was_cut()).collect::<Vec<_>>()
    };
    let all = rooms.held.bytes();
    assert_eq!(cut(all - 1), [false, true, false, false], "of the tenant's the one that holds the most");
    assert_eq!(cut(all - held[1] - held[2]), [false, true, true, false]);
    assert_eq!(cut(held[3] - 1), [false, true, true, true], "now the other one holds more");
    assert_eq!(cut(0), [true; 4]);
}

#[tokio::test]
async fn regression_a_crowd_that_is_never_quiet_makes_room_by_a_clock_that_goes_on() {
    let rooms = Rooms::new(3);
    let taken = taken_by(&rooms, &["many"; 3]).await;
    let _arriving: Vec<_> = taken.iter().map(|room| room.activity.begin(false, (0, 0))).collect();
    assert_eq!(rooms.make_room().closed, 1);
}
