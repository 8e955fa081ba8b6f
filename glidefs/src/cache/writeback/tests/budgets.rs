//! Indexes over their budget, where the store has the data.

use super::*;
use crate::cache::{Budgets, Content, Pace};

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
    assert!(cache.volume(EXPORT).index_figures().is_full, "{:?}", cache.volume(EXPORT).index_figures());
    drop(cache);
    host.start();
    assert_ne!(host.volume().index_pace(every, Content::Data, true).0, Pace::Full, "the store makes room");
    let deadline = std::time::Instant::now() + PATIENCE;
    while host.volume().index_figures().bytes > 3 << 9 {
        assert!(std::time::Instant::now() < deadline, "{:?}", host.volume().index_figures());
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
