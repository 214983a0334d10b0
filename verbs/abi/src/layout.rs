//! Macros that declare C structures and constants, with a list of them for the comparison with the headers. The C
//! interface of NDKPI describes its structures with [`layouts`](crate::layouts), too.

/// Size of a structure and offsets of its members, in octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the structure or union, without the keyword.
    pub name: &'static str,
    /// Size.
    pub size: usize,
    /// Members in the order of their declaration.
    pub members: &'static [Member],
}

/// Offset and size of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name in Rust; a raw identifier where C's name is a keyword.
    pub name: &'static str,
    /// Offset in the structure.
    pub offset: usize,
    /// Size.
    pub size: usize,
}

/// Declares `LAYOUTS`, the list of these structures with the members that are named.
#[macro_export]
macro_rules! layouts {
    ($( $name:ident { $( $member:ident : $type:ty ),* } )*) => {
        pub(crate) const LAYOUTS: &[$crate::Layout] = &[$(
            $crate::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                members: &[$(
                    $crate::Member {
                        name: stringify!($member),
                        offset: core::mem::offset_of!($name, $member),
                        size: size_of::<$type>(),
                    },
                )*],
            },
        )*];
    };
}

/// Declares C structures with public members, and `LAYOUTS`, the list of them.
macro_rules! c_structs {
    ($(
        $(#[$attribute:meta])*
        $name:ident { $( $(#[$member_attribute:meta])* $member:ident : $type:ty ),* $(,)? }
    )*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                $(
                    #[doc = concat!("C member `", stringify!($member), "`. ")]
                    $(#[$member_attribute])*
                    pub $member: $type,
                )*
            }

            impl $name {
                /// All octets 0: null pointers, absent functions, numbers 0.
                #[must_use]
                pub const fn zeroed() -> Self {
                    // SAFETY: members are integers, raw pointers, optional functions, C arrays, and structures or
                    // unions of those: zero octets are a valid value of each.
                    unsafe { core::mem::zeroed() }
                }
            }
        )*

        $crate::layouts! { $( $name { $( $member: $type ),* } )* }
    };
}

/// Fails to compile unless a structure has this size and its members these offsets.
macro_rules! assert_layout {
    ($name:ident, $size:literal $(, $($member:ident).+ : $offset:literal)* $(,)?) => {
        #[cfg(target_arch = "x86_64")]
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $( assert!(core::mem::offset_of!($name, $($member).+) == $offset); )*
        };
    };
}

/// Declares a C enumeration as a newtype with constants, and a module of its name with `VALUES`.
macro_rules! c_enum {
    (
        $(#[$attribute:meta])*
        $name:ident($type:ty) { $( $(#[$constant_attribute:meta])* $constant:ident = $value:expr ),* $(,)? }
    ) => {
        $(#[$attribute])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $type);

        $(
            #[doc = concat!("`", stringify!($constant), "` of [`", stringify!($name), "`]. ")]
            $(#[$constant_attribute])*
            pub const $constant: $name = $name($value);
        )*

        impl $name {
            pub(crate) const VALUES: &'static [(&'static str, i64)] =
                &[$( (stringify!($constant), $constant.0 as i64), )*];
        }
    };
}

/// Declares flags and other plain constants of C, and a list of them.
macro_rules! c_constants {
    (
        $(#[$attribute:meta])*
        $list:ident: $type:ty { $( $(#[$constant_attribute:meta])* $constant:ident = $value:expr ),* $(,)? }
    ) => {
        $(
            #[doc = concat!("C constant `", stringify!($constant), "`. ")]
            $(#[$constant_attribute])*
            pub const $constant: $type = $value;
        )*

        $(#[$attribute])*
        pub(crate) const $list: &[(&str, i64)] = &[$( (stringify!($constant), $constant as i64), )*];
    };
}
