//! How many queues a worker hosts.

use std::sync::Arc;

use super::{Bench, Client, QUEUES_MAX};
use crate::export::Operation;

#[tokio::test]
async fn a_queue_beyond_the_limit_leaves_nothing_behind_and_fits_when_another_has_gone() {
    let bench = Bench::new();
    let mut clients = Vec::new();
    for id in 1..=QUEUES_MAX {
        clients.push(Client::attach(&bench.worker, &bench.export(id)).await);
    }
    let late = bench.export(QUEUES_MAX + 1);
    assert!(Client::try_attach(&bench.worker, &late).await.is_err());
    assert_eq!(bench.worker.stats.queues.get(), u64::from(QUEUES_MAX));
    assert_eq!(Arc::strong_count(&late), 1, "the queue that was refused is gone");
    for client in &mut clients {
        assert_eq!(client.run(Operation::Write, 0, 8, vec![7; 4096]).0, Ok(4096));
    }

    clients.remove(0).detach().await;
    let mut client = Client::attach(&bench.worker, &late).await;
    assert_eq!(client.run(Operation::Write, 0, 8, vec![8; 4096]).0, Ok(4096));
}
