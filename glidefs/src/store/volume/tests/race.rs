//! Two writers want the same volume at the same time.

use super::support::*;
use crate::store::volume::VolumeError;

const SIZE: u64 = 1 << 21;
const ROUNDS: u64 = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_writers_one_wins_each_number_and_nothing_is_mixed() {
    let world = World::new();
    let daemons = [world.daemon(1), world.daemon(2)];
    let mut holder = daemons[0].volumes.create(&name("vm"), SIZE).await.unwrap();
    let (mut before, mut after) = (0, 0);
    let mut content = [0, 0];
    for round in 1..=ROUNDS {
        let taker = daemons[round as usize % 2].volumes.clone();
        // In some rounds the order is fixed; in the others either writer may be ahead.
        let lead = round % 5;
        let committing = {
            let holder = holder.clone();
            async move {
                for _ in 0..lead {
                    tokio::task::yield_now().await;
                }
                let cut = MemoryCut::new(round, &[(0, 1, round), (2000, 1, round)]);
                holder.commit(cut, SIZE).await
            }
        };
        let opening = async move { taker.take_over(&name("vm")).await };
        let (commit, open) = match round % 10 {
            0 => {
                let commit = committing.await;
                (commit, opening.await.unwrap())
            }
            9 => {
                let open = opening.await.unwrap();
                (committing.await, open)
            }
            _ => {
                let (commit, open) = (tokio::spawn(committing), tokio::spawn(opening));
                (commit.await.unwrap(), open.await.unwrap().unwrap())
            }
        };
        match commit {
            Ok(_) => {
                before += 1;
                content = [round, round];
            }
            Err(VolumeError::Fenced(taker)) => {
                after += 1;
                assert_eq!(taker.fence, open.writer());
            }
            Err(error) => panic!("round {round}: {error}"),
        }
        tags(&open, range(0, 1), &content[..1]).await;
        tags(&open, range(2000, 1), &content[1..]).await;
        let late = holder.commit(MemoryCut::new(round, &[(0, 1, 1_000_000)]), SIZE).await;
        assert!(matches!(late, Err(VolumeError::Fenced(taker)) if taker.fence == open.writer()));
        holder = open;
    }
    assert_eq!(before + after, ROUNDS);
    let manifests = daemons[0].volumes.store().list(crate::store::Folder::Manifests(holder.id()), None).await;
    // The first manifest, one for each takeover, one for each commit that won.
    assert_eq!(manifests.unwrap().len() as u64, 1 + ROUNDS + before);
    assert!(before > 0 && after > 0, "{before} {after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commits_snapshots_and_compaction_of_one_writer_wait_for_each_other() {
    let world = World::new();
    let daemon = world.daemon(1);
    let volume = daemon.volumes.create(&name("vm"), SIZE).await.unwrap();
    let writers = (0..4).map(|writer| {
        let volume = volume.clone();
        tokio::spawn(async move {
            for seq in 1..30 {
                let cut = MemoryCut::new(seq, &[(writer * 10, 4, writer * 100 + seq)]);
                volume.commit(cut, SIZE).await.unwrap();
                volume.compact().await.unwrap();
                if seq % 10 == 0 {
                    volume.snapshot(&name(&format!("s{writer}-{seq}"))).await.unwrap();
                }
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    for writer in 0..4 {
        tags(&volume, range(writer * 10, 4), &[writer * 100 + 29; 4]).await;
    }
    assert_eq!(volume.snapshots().await.unwrap().len(), 8);
    while volume.compact().await.unwrap().is_some() {}
    assert!(volume.crowd().unwrap().fan_out <= 14);
}
