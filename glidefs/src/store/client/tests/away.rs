//! Stores that are away: unmounted directories, and credentials that cannot be read.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_directory_that_was_unmounted_is_waited_for_and_nothing_is_written_in_its_place() {
    let place = TempDir::new().unwrap();
    let (mounted, aside) = (place.path().join("store"), place.path().join("aside"));
    let backend = Backend::connect(&StoreUrl::File(mounted.clone()), &Vec::new(), true).unwrap();
    let store = Store::over(backend, StoreOptions::default());
    let _ = store.create(&manifest(1), &one(b"m")).await.unwrap();
    std::fs::rename(&mounted, &aside).unwrap();
    for made in [false, true] {
        if made {
            std::fs::create_dir(&mounted).unwrap();
        }
        let error = store.create(&manifest(2), &one(b"m")).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        let error = store.list(Folder::Manifests(VOLUME), None).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
    }
    assert_eq!(std::fs::read_dir(&mounted).unwrap().count(), 0);
    std::fs::remove_dir(&mounted).unwrap();
    std::fs::rename(&aside, &mounted).unwrap();
    assert_eq!(store.create(&manifest(2), &one(b"m")).await.unwrap(), Created::Created);
}

/// A store in a directory, for a daemon that used the store before.
fn known_in(directory: &std::path::Path) -> Store {
    let url = StoreUrl::File(directory.to_owned());
    let backend = match Backend::connect(&url, &Vec::new(), false) {
        Ok(backend) => backend,
        Err(_) => Backend::later(&url, &Vec::new()).unwrap(),
    };
    let retry = RetryPolicy { time_budget: Duration::from_secs(5), ..RetryPolicy::default() };
    Store::over(backend, StoreOptions { retry, checked_first: true, ..StoreOptions::default() })
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_not_mounted_when_the_daemon_starts_is_waited_for_and_nothing_is_made_in_its_place()
 {
    let place = TempDir::new().unwrap();
    let (mounted, aside) = (place.path().join("store"), place.path().join("aside"));
    let backend = Backend::connect(&StoreUrl::File(mounted.clone()), &Vec::new(), true).unwrap();
    let access = Access::ReadWrite;
    let (_, marker) = Store::open(backend, access, StoreOptions::default()).await.unwrap();
    std::fs::rename(&mounted, &aside).unwrap();
    for made in [false, true] {
        if made {
            std::fs::create_dir(&mounted).unwrap();
        }
        let store = known_in(&mounted);
        let error = store.check(Access::Known(marker.store_id)).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        // Before the check no other request finds anything out, or writes.
        let error = store.create(&manifest(1), &one(b"m")).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        let error = store.list(Folder::Manifests(VOLUME), None).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert_eq!(mounted.exists(), made);
        if made {
            assert_eq!(std::fs::read_dir(&mounted).unwrap().count(), 0);
            std::fs::remove_dir(&mounted).unwrap();
        }
        std::fs::rename(&aside, &mounted).unwrap();
        store.check(Access::Known(marker.store_id)).await.unwrap();
        assert_eq!(store.create(&manifest(1 + u64::from(made)), &one(b"m")).await.unwrap(), Created::Created);
        std::fs::rename(&mounted, &aside).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_that_cannot_be_read_make_a_known_store_one_that_is_away() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("credentials");
    std::fs::write(&file, "[default]\naws_access_key_id = half\n").unwrap();
    let path = file.to_str().unwrap().to_owned();
    let variables = vec![("AWS_SHARED_CREDENTIALS_FILE".to_owned(), path)];
    let url = StoreUrl::S3(Bucket { name: "b".into(), prefix: "p".into() });
    assert!(matches!(Backend::connect(&url, &variables, false), Err(StoreError::Setup { .. })));
    let backend = Backend::later(&url, &variables).unwrap();
    let retry = RetryPolicy { time_budget: Duration::from_secs(5), ..RetryPolicy::default() };
    let store = Store::over(backend, StoreOptions { retry, checked_first: true, ..StoreOptions::default() });
    let error = store.check(Access::Known(uuid::Uuid::nil())).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let cause = crate::observe::chain(&error);
    assert!(cause.contains("correct the files") && cause.contains("aws_secret_access_key"), "{cause}");
}
