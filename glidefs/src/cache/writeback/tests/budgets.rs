//! Volumes over their budget of memory or of the log, with a store.

use super::*;
use crate::cache::{Budgets, Coming, Content, Pace, Resource};

#[test]
fn an_index_over_the_budget_becomes_small_when_the_store_has_the_data_and_no_byte_is_lost() {
    let mut host = Host::new(memory(), 1, false);
    host.write_back_when_asked();
    let mut model = Model::new(3);
    let every = SectorRange::new(1, 1).unwrap();
    // So few that the log asks for no writeback.
    for (number, sector) in (1..).zip((0..1000_u16).step_by(5).map(u64::from)) {
        model.sectors[usize::try_from(sector).unwrap()] = number;
        host.write(SectorRange::new(sector, 1).unwrap(), Some(&bytes_of(number, sector))).unwrap();
    }
    // Recovery refuses nothing, also under a smaller budget.
    host.budgets = Budgets { index_bytes_max_per_export: 3 << 10, ..Budgets::default() };
    host.stop();
    let (cache, _) = host.open().unwrap();
    // Nobody writes back, so nothing makes room yet.
    assert!(
        cache.volume(EXPORT).usage(Resource::Index).is_full,
        "{:?}",
        cache.volume(EXPORT).usage(Resource::Index)
    );
    drop(cache);
    host.start();
    assert_ne!(host.volume().index_pace(every, Content::Data, true).0, Pace::Full, "the store makes room");
    let deadline = std::time::Instant::now() + PATIENCE;
    while host.volume().usage(Resource::Index).bytes > 3 << 9 {
        assert!(std::time::Instant::now() < deadline, "{:?}", host.volume().usage(Resource::Index));
        // As a held write does.
        let _: Pace = host.volume().index_pace(every, Content::Data, true).0;
        host.clock.advance(Duration::from_secs(1));
        host.driver().keep();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(host.volume().index_pace(every, Content::Data, true).0, Pace::Go);
    model.check_all(&mut host);
    let catalog = host.catalog.entries.lock().unwrap()[&EXPORT].clone();
    assert!(catalog.evicted > Seq(0) && catalog.evicted <= catalog.resume.cut);
    host.restart();
    model.check_all(&mut host);
}

#[test]
fn a_volume_over_its_share_of_the_log_is_written_back_and_waits_no_longer_nor_when_lost() {
    let mut host = Host::new(memory(), 1, false);
    host.write_back_when_asked();
    host.budgets = Budgets { log_bytes_max_per_export: 256 << 10, ..Budgets::default() };
    host.restart();
    let pace = |host: &mut Host| host.volume().log_pace(Coming::default(), true);
    let fill = |host: &mut Host, number| {
        for sector in (0..320).step_by(8) {
            let range = SectorRange::new(sector, 1).unwrap();
            host.write(range, Some(&bytes_of(number, sector))).unwrap();
        }
        // A frame counts whole.
        assert_eq!(host.volume().usage(Resource::Log).bytes, 40 << 12);
        assert_eq!((pace(host), host.volume().waits_for()), (Pace::Wait, Some(Resource::Log)));
    };
    fill(&mut host, 1);
    let deadline = std::time::Instant::now() + PATIENCE;
    while pace(&mut host) != Pace::Go {
        assert!(std::time::Instant::now() < deadline, "{:?}", host.volume().usage(Resource::Log));
        host.clock.advance(Duration::from_secs(1));
        host.driver().keep();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(host.volume().waits_for(), None);
    // A writeback asked for above may go on: a restart ends it.
    host.restart();
    // A start refuses nothing, and a volume without a link to the store does not wait.
    fill(&mut host, 2);
    host.stop();
    let (cache, _) = host.open().unwrap();
    assert_eq!(cache.volume(EXPORT).usage(Resource::Log).bytes, 40 << 12);
    assert_eq!(
        (cache.volume(EXPORT).log_pace(Coming::default(), false), cache.volume(EXPORT).waits_for()),
        (Pace::Go, None)
    );
    drop(cache);
    host.start();
    assert_eq!(pace(&mut host), Pace::Wait);
    host.volume().store_link().unwrap().fence();
    assert_eq!((pace(&mut host), host.volume().waits_for()), (Pace::Go, None));
}
