//! Volume capabilities: how a volume is to be used, and which ways the driver takes.
//!
//! Owns the checks. Invariants: no volume is used by more than one host at a time, as a file system on a block device allows; a
//! raw device is never handed out as read-only, since a mount of a device's node does not keep its user from writing.

use super::error::CsiError;
use super::proto::VolumeCapability;
use super::proto::volume_capability::access_mode::Mode;
use super::proto::volume_capability::{AccessMode, AccessType, MountVolume};

/// The file systems which the driver makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// The name for mount(8), blkid(8) and mkfs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The file system with a name; an empty name leaves the choice to the driver.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "" | "ext4" => Some(Self::Ext4),
            "xfs" => Some(Self::Xfs),
            _ => None,
        }
    }

    /// The smallest device on which the tools make this file system, bytes.
    const fn least_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 16 << 20,
            Self::Xfs => 300 << 20,
        }
    }
}

/// The form in which a volume is handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The device itself, as a block device.
    Block,
    /// A file system, mounted as a folder.
    Mount {
        fs: FileSystem,
        /// Options of the file system for mount(8).
        flags: Vec<String>,
    },
}

/// How a volume is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub form: Form,
    /// Whether nobody is to write.
    pub is_read_only: bool,
    /// Whether the volume is published at one path at most, as for ReadWriteOncePod.
    pub is_single: bool,
}

impl Access {
    /// Reads and checks the capability of a request.
    pub fn of(capability: Option<&VolumeCapability>) -> Result<Self, CsiError> {
        let capability = capability.ok_or(CsiError::missing("volume_capability"))?;
        let form = match &capability.access_type {
            Some(AccessType::Block(_)) => Form::Block,
            Some(AccessType::Mount(mount)) => mounted(mount)?,
            None => return Err(CsiError::missing("volume_capability.access_type")),
        };
        let mode = capability.access_mode.as_ref().map(AccessMode::mode);
        let is_read_only = match mode {
            Some(Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter) => {
                false
            }
            Some(Mode::SingleNodeReaderOnly) => true,
            Some(Mode::Unknown) | None => {
                return Err(CsiError::missing("volume_capability.access_mode"));
            }
            Some(
                mode @ (Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter),
            ) => {
                let reason = format!(
                    "{}: a volume is used by one host at a time, so ReadWriteOnce and ReadWriteOncePod are possible",
                    mode.as_str_name()
                );
                return Err(CsiError::invalid("volume_capability.access_mode", reason));
            }
        };
        let is_single = mode == Some(Mode::SingleNodeSingleWriter);
        let access = Self { form, is_read_only, is_single };
        access.check_read_only(false)?;
        Ok(access)
    }

    /// Reads and checks all capabilities of a request, of which there must be one.
    pub fn all(capabilities: &[VolumeCapability]) -> Result<Vec<Self>, CsiError> {
        if capabilities.is_empty() {
            return Err(CsiError::missing("volume_capabilities"));
        }
        capabilities.iter().map(|capability| Self::of(Some(capability))).collect()
    }

    /// Whether the volume is to be published read-only, by the capability or by the request's own field.
    pub fn check_read_only(&self, is_asked: bool) -> Result<bool, CsiError> {
        let is_read_only = self.is_read_only || is_asked;
        if is_read_only && self.form == Form::Block {
            let reason = "a raw block device cannot be handed out read-only: use a file system";
            return Err(CsiError::invalid("readonly", reason));
        }
        Ok(is_read_only)
    }

    /// The smallest volume for this use, bytes.
    pub fn least_bytes(&self) -> u64 {
        match &self.form {
            Form::Block => 0,
            Form::Mount { fs, .. } => fs.least_bytes(),
        }
    }
}

fn mounted(mount: &MountVolume) -> Result<Form, CsiError> {
    let fs = FileSystem::of(&mount.fs_type).ok_or_else(|| {
        CsiError::invalid(
            "volume_capability.mount.fs_type",
            format!("{:?} is not made by this driver: use ext4 or xfs", mount.fs_type),
        )
    })?;
    if let Some(flag) = mount.mount_flags.iter().find(|flag| !is_harmless(flag)) {
        let reason = format!("{flag:?} is no option of a file system: remove it from mountOptions");
        return Err(CsiError::invalid("volume_capability.mount.mount_flags", reason));
    }
    Ok(Form::Mount { fs, flags: mount.mount_flags.clone() })
}

/// Whether `flag` is one option of a file system, and none with which mount(8) would do something else.
fn is_harmless(flag: &str) -> bool {
    const OTHERS: [&str; 10] =
        ["bind", "rbind", "move", "remount", "loop", "offset", "sizelimit", "_netdev", "x-", "X-"];
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-=.:".contains(&byte);
    !flag.is_empty()
        && flag.len() <= 256
        && flag.bytes().all(allowed)
        && !flag.starts_with('-')
        && !OTHERS.iter().any(|other| match other.strip_suffix('-') {
            Some(_) => flag.starts_with(other),
            None => flag.split('=').next() == Some(other),
        })
}

#[cfg(test)]
mod tests {
    use super::super::proto::volume_capability::BlockVolume;
    use super::*;

    fn mount(fs_type: &str, flags: &[&str]) -> AccessType {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.into(),
            mount_flags: flags.iter().map(|&flag| flag.into()).collect(),
            volume_mount_group: String::new(),
        })
    }

    fn access(access_type: AccessType, mode: Mode) -> Result<Access, CsiError> {
        let access_mode = Some(AccessMode { mode: mode.into() });
        Access::of(Some(&VolumeCapability { access_type: Some(access_type), access_mode }))
    }

    #[test]
    fn ext4_is_the_file_system_for_which_nobody_asks() {
        let form = access(mount("", &[]), Mode::SingleNodeWriter).unwrap().form;
        assert_eq!(form, Form::Mount { fs: FileSystem::Ext4, flags: vec![] });
    }

    #[test]
    fn several_hosts_at_a_time_are_refused() {
        for mode in [Mode::MultiNodeReaderOnly, Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter] {
            for access_type in [mount("ext4", &[]), AccessType::Block(BlockVolume {})] {
                assert!(
                    matches!(
                        access(access_type, mode),
                        Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })
                    ),
                    "{mode:?}"
                );
            }
        }
    }

    #[test]
    fn a_raw_device_is_never_promised_to_be_read_only() {
        let block = || AccessType::Block(BlockVolume {});
        assert!(access(block(), Mode::SingleNodeReaderOnly).is_err());
        let writer = access(block(), Mode::SingleNodeWriter).unwrap();
        assert!(!writer.check_read_only(false).unwrap());
        assert!(writer.check_read_only(true).is_err());
        assert!(access(mount("xfs", &[]), Mode::SingleNodeReaderOnly).unwrap().is_read_only);
    }

    #[test]
    fn other_file_systems_and_flags_that_are_no_options_are_refused() {
        for fs_type in ["ext3", "btrfs", "EXT4", "xfs,loop"] {
            assert!(access(mount(fs_type, &[]), Mode::SingleNodeWriter).is_err(), "{fs_type}");
        }
        for flag in ["", "bind", "remount", "a,b", "loop=/dev/loop0", "x-mount.mkdir", "-o", "a b", "a\n"] {
            let error = access(mount("", &[flag]), Mode::SingleNodeWriter).unwrap_err();
            assert!(error.to_string().ends_with(": remove it from mountOptions"), "{flag:?}: {error}");
        }
        for flag in ["noatime", "discard", "nodelalloc", "data=ordered", "commit=30", "nouuid", "movement"] {
            access(mount("", &[flag]), Mode::SingleNodeWriter).unwrap();
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = |capability| {
            matches!(
                Access::of(capability),
                Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })
            )
        };
        assert!(missing(None));
        assert!(missing(Some(&VolumeCapability::default())));
        assert!(matches!(
            Access::all(&[]),
            Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })
        ));
        assert!(matches!(
            access(mount("", &[]), Mode::Unknown),
            Err(CsiError::Refused { code: tonic::Code::InvalidArgument, .. })
        ));
    }
}
