//! Facts of the store: the answers of the place that the configuration names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::daemon::Daemon;
use super::is_root;
use super::patience::answer;
use crate::config::Config;
use crate::doctor::store::{Answers, Marker, StoreFacts, Trouble, VariablesOf};
use crate::observe::chain;
use crate::store::{
    Access, Backend, RetryPolicy, Store, StoreError, StoreOptions, StoreUrl, Variables, process_variables,
};

/// How long one try of a request may take, and all tries of a request.
const TRY_PATIENCE: Duration = Duration::from_secs(5);
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// How long the trial may take, without the removal of its objects.
const TRIAL_PATIENCE: Duration = Duration::from_mins(1);

/// The facts of the store of `config`, with the environment of `daemon` where that can be read.
pub(super) async fn gather(config: &Config, daemon: Option<&Daemon>) -> StoreFacts {
    let url = match &config.store.url {
        None => return StoreFacts::NotSet,
        Some(StoreUrl::Memory) => return StoreFacts::Memory,
        // Credentials and directories are the daemon's, and others than root have neither.
        Some(_) if !is_root() => return StoreFacts::Forbidden,
        Some(url) => url.clone(),
    };
    let (variables, of) = match daemon.and_then(|daemon| daemon.variables.clone()) {
        Some(variables) => (variables, VariablesOf::Daemon),
        None => (process_variables(), VariablesOf::Command),
    };
    let of = if matches!(url, StoreUrl::File(_)) { VariablesOf::Nobody } else { of };
    ask_place(config, url, variables, of).await
}

async fn ask_place(config: &Config, url: StoreUrl, variables: Variables, of: VariablesOf) -> StoreFacts {
    let cache = config.cache.dir.clone();
    let set_up = answer(move || {
        let has_started = cache.join("catalog.redb").exists();
        let backend = Backend::connect(&url, &variables, false).map_err(|error| {
            let is_missing = matches!(&url, StoreUrl::File(path) if !path.exists());
            (chain(&error), is_missing && !has_started)
        })?;
        let shares_disk = matches!(&url, StoreUrl::File(path) if is_same_disk(path, &cache));
        Ok((backend, has_started, shares_disk))
    });
    match set_up.await.unwrap_or_else(|silence| Err((silence, false))) {
        Ok((backend, has_started, shares_disk)) => {
            let store = Store::over(backend, options());
            let (marker, trial) = ask(&store).await;
            let location = store.location().to_owned();
            let answers = Answers { location, variables: of, marker, trial, has_started, shares_disk };
            StoreFacts::Asked(Box::new(answers))
        }
        Err((error, is_made)) => StoreFacts::Unusable { error, is_made, variables: of },
    }
}

fn options() -> StoreOptions {
    let retry =
        RetryPolicy { try_time_max: TRY_PATIENCE, time_budget: REQUEST_PATIENCE, ..RetryPolicy::default() };
    StoreOptions { retry, ..StoreOptions::default() }
}

async fn ask(store: &Store) -> (Marker, Option<Result<crate::store::Trial, Trouble>>) {
    let marker = match store.check(Access::ReadOnly).await {
        Ok(marker) => Marker::Store(marker.store_id),
        Err(StoreError::NotAStore { .. }) => Marker::Nothing,
        Err(error) => return (Marker::Trouble(trouble(&error)), None),
    };
    (marker, Some(store.try_out(TRIAL_PATIENCE).await.map_err(|error| trouble(&error))))
}

fn trouble(error: &StoreError) -> Trouble {
    let text = chain(error);
    match error {
        StoreError::Refused { advice, .. } => Trouble::Refused { text, advice },
        error if error.is_transient() => Trouble::Unreachable(text),
        _ => Trouble::Unfit(text),
    }
}

fn is_same_disk(store: &Path, cache: &Path) -> bool {
    let number = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    number(store).is_some_and(|store| number(cache) == Some(store))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration with cache and store in `folder`.
    fn config(folder: &Path) -> Config {
        let mut config = Config::default();
        config.cache.dir = folder.join("cache");
        config.store.url = Some(StoreUrl::File(folder.join("store")));
        fs::create_dir(&config.cache.dir).unwrap();
        config
    }

    async fn ask_directory(config: &Config) -> StoreFacts {
        let url = config.store.url.clone().unwrap();
        ask_place(config, url, Vec::new(), VariablesOf::Nobody).await
    }

    #[tokio::test]
    async fn a_directory_that_is_missing_is_made_by_the_first_start_only() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let facts = ask_directory(&config).await;
        assert!(matches!(facts, StoreFacts::Unusable { is_made: true, .. }), "{facts:?}");
        fs::write(config.cache.dir.join("catalog.redb"), "").unwrap();
        let facts = ask_directory(&config).await;
        assert!(matches!(facts, StoreFacts::Unusable { is_made: false, .. }), "{facts:?}");
    }

    #[tokio::test]
    async fn an_empty_place_is_tried_and_stays_empty_and_a_store_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let place = folder.path().join("store");
        fs::create_dir(&place).unwrap();
        let StoreFacts::Asked(answers) = ask_directory(&config).await else { panic!("it is there") };
        assert!(matches!(answers.marker, Marker::Nothing) && answers.shares_disk && !answers.has_started);
        assert_eq!(answers.trial.unwrap().unwrap().winners, 1);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        fs::write(place.join("glidefs.json"), "{\"another\": 1}").unwrap();
        let StoreFacts::Asked(answers) = ask_directory(&config).await else { panic!("it is there") };
        assert!(matches!(answers.marker, Marker::Trouble(Trouble::Unfit(_))) && answers.trial.is_none());
    }

    #[tokio::test]
    async fn a_store_that_is_not_named_or_not_for_this_command_is_not_asked() {
        assert!(matches!(gather(&Config::default(), None).await, StoreFacts::NotSet));
        let folder = tempfile::tempdir().unwrap();
        let facts = gather(&config(folder.path()), None).await;
        assert_eq!(matches!(facts, StoreFacts::Forbidden), !is_root(), "{facts:?}");
    }

    #[test]
    fn refusals_are_told_from_places_that_do_not_answer() {
        let operation = crate::store::Operation::Get;
        let key = String::new();
        let refused =
            StoreError::Refused { operation, key: key.clone(), advice: "the clock", source: "".into() };
        assert!(matches!(trouble(&refused), Trouble::Refused { advice: "the clock", .. }));
        let away =
            StoreError::Unreachable { operation, key, tries: 1, elapsed: Duration::ZERO, source: "".into() };
        assert!(matches!(trouble(&away), Trouble::Unreachable(_)));
    }
}
