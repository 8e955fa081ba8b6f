//! A volume with so many packs that a READ might have to ask too many.

use super::*;
use crate::cache::Pace;
use crate::store::volume::{CutExtent, CutSource, FAN_OUT_MAX};

/// A cut of one extent.
#[derive(Debug)]
struct Small {
    seq: Seq,
    extents: [CutExtent; 1],
}

impl CutSource for Small {
    fn seq(&self) -> Seq {
        self.seq
    }

    fn extents(&self) -> &[CutExtent] {
        &self.extents
    }

    fn read(
        &self,
        _: SectorRange,
        buffer: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        buffer.fill(self.seq.0.to_le_bytes()[0]);
        Ok(())
    }
}

#[test]
fn writes_of_a_volume_that_is_as_crowded_as_one_may_be_wait_until_packs_were_merged() {
    let mut host = Host::new(memory(), 1, false);
    let name = "crowded".parse().unwrap();
    let volume = host.runtime.block_on(async {
        let volume = host.volumes.create(&name, SECTORS).await.unwrap();
        for seq in (1..=FAN_OUT_MAX as u64).map(Seq) {
            let range = SectorRange::new(0, 8).unwrap();
            let cut = Small { seq, extents: [CutExtent { range, seq, zero: false }] };
            volume.commit(Arc::new(cut), SECTORS).await.unwrap();
        }
        volume
    });
    let id = ExportId(77);
    let cache = host.driver().cache.clone();
    let crowded = cache.begin(id, volume.cut());
    host.catalog.add(id, volume.state());
    // No engine runs, and so nobody merges yet.
    let queue = cache.writeback_queue(host.runtime.handle().clone());
    crowded.link_to_store(volume.clone(), Arc::clone(&queue), SECTORS, SECTORS);
    assert_eq!(crowded.pace(4096, false).0, Pace::Wait);
    assert_eq!(crowded.packs(), Some((FAN_OUT_MAX as u64, FAN_OUT_MAX as u64)));
    assert_eq!(host.volume().pace(4096, false).0, Pace::Go, "another volume does not notice");
    let (stop, stopped) = watch::channel(false);
    let writeback = host.runtime.spawn(cache.writeback(queue, host.triggers).run(stopped));
    let deadline = std::time::Instant::now() + PATIENCE;
    let is_crowded = || volume.crowd().is_some_and(|crowd| crowd.fan_out > FAN_OUT_MAX / 4);
    while crowded.pace(4096, false).0 == Pace::Wait || is_crowded() {
        assert!(std::time::Instant::now() < deadline, "nothing was merged");
        // A look now and then: merging notifies nobody.
        std::thread::sleep(Duration::from_millis(5));
    }
    stop.send(true).unwrap();
    host.runtime.block_on(writeback).unwrap();
}

/// How crowded an export is was once noted by commits and merges only. After a rollback from a crowded state writes waited for a
/// merge, no merge was due, and no commit corrected the figure before the next start of the daemon.
#[test]
fn an_export_that_went_back_to_a_state_with_few_packs_takes_writes_again() {
    let mut host = Host::new(memory(), 1, false);
    let volume = host.runtime.block_on(async {
        let volume = host.volumes.create(&"crowded".parse().unwrap(), SECTORS).await.unwrap();
        for seq in (1..=FAN_OUT_MAX as u64).map(Seq) {
            let range = SectorRange::new(0, 8).unwrap();
            let cut = Small { seq, extents: [CutExtent { range, seq, zero: false }] };
            volume.commit(Arc::new(cut), SECTORS).await.unwrap();
            if seq == Seq(1) {
                volume.snapshot(&"before".parse().unwrap()).await.unwrap();
            }
        }
        volume
    });
    // A rollback does the same: the export goes on under another id, then the volume in the store goes back.
    let id = ExportId(77);
    let cache = host.driver().cache.clone();
    let export = cache.begin(id, volume.cut());
    host.catalog.add(id, volume.state());
    let queue = cache.writeback_queue(host.runtime.handle().clone());
    export.link_to_store(volume.clone(), Arc::clone(&queue), SECTORS, SECTORS);
    assert_eq!(export.pace(4096, false).0, Pace::Wait);
    let committed = host.runtime.block_on(volume.rollback(&"before".parse().unwrap())).unwrap();
    export.replaced(committed.resume.size_sectors, committed.crowd);
    assert_eq!(volume.crowd().map(|crowd| crowd.fan_out), Some(1));
    let (stop, stopped) = watch::channel(false);
    let writeback = host.runtime.spawn(cache.writeback(queue, host.triggers).run(stopped));
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while export.pace(4096, false).0 == Pace::Wait {
        assert!(std::time::Instant::now() < deadline, "writes wait for ever: {:?}", export.packs());
        // A look now and then: merging notifies nobody.
        std::thread::sleep(Duration::from_millis(5));
    }
    stop.send(true).unwrap();
    host.runtime.block_on(writeback).unwrap();
}
