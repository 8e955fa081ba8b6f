//! Facts of the kernel and its ublk driver.

use super::patience::answer;
use crate::config::Config;
use crate::doctor::kernel::{Driver, KernelFacts};
use crate::observe::chain;
use crate::router::DeviceError;
use crate::ublk::{DeviceLimit, Features};

/// The facts, and the wants of `config`.
pub(super) async fn gather(config: &Config) -> KernelFacts {
    let uname = nix::sys::utsname::uname();
    KernelFacts {
        release: uname.map(|uname| uname.release().to_string_lossy().into_owned()).unwrap_or_default(),
        driver: answer(Features::probe).await.map_or_else(Driver::Failed, driver),
        limit: DeviceLimit::read(),
        exports_max: config.exports.max,
        bounce: config.bounce_mode,
    }
}

fn driver(answer: Result<Features, DeviceError>) -> Driver {
    match answer {
        Ok(features) => Driver::Answers(features),
        Err(DeviceError::NoDriver) => Driver::Missing,
        Err(DeviceError::NoPermission) if !super::is_root() => Driver::Forbidden,
        Err(error) => Driver::Failed(chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_of_the_driver_are_told_apart() {
        assert!(matches!(driver(Err(DeviceError::NoDriver)), Driver::Missing));
        let forbidden = driver(Err(DeviceError::NoPermission));
        assert_eq!(matches!(forbidden, Driver::Forbidden), !crate::doctor::gather::is_root());
        assert!(matches!(driver(Err(DeviceError::LimitReached)), Driver::Failed(_)));
        assert!(matches!(driver(Ok(Features::of(&[]))), Driver::Answers(_)));
    }

    #[tokio::test]
    async fn the_running_kernel_has_a_release() {
        assert!(gather(&Config::default()).await.release.contains('.'));
    }
}
