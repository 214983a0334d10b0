//! Macros that declare C structures and constants, and list them for the comparison with the header.

/// Declares C structures with public members, and `LAYOUTS`, the list of them. The numbers are sizes and offsets of the
/// documented interface on 64-bit machines; a different layout does not compile.
macro_rules! c_structs {
    ($(
        $(#[$attribute:meta])*
        $name:ident = $size:literal {
            $( $(#[$member_attribute:meta])* $member:ident : $type:ty = $offset:literal ),* $(,)?
        }
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

            const _: () = {
                assert!(size_of::<$name>() == $size);
                $( assert!(core::mem::offset_of!($name, $member) == $offset); )*
            };
        )*

        flue_verbs_abi::layouts! { $( $name { $( $member: $type ),* } )* }
    };
}

/// Declares dispatch tables: consecutive function pointers.
macro_rules! c_tables {
    ($(
        $(#[$attribute:meta])*
        $name:ident { $( $member:ident : $type:ty ),* $(,)? }
    )*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                $(
                    #[doc = concat!("`", stringify!($member), "`.")]
                    pub $member: $type,
                )*
            }

            const _: () = {
                let members = [$( (core::mem::offset_of!($name, $member), size_of::<$type>()) ),*];
                assert!(size_of::<$name>() == 8 * members.len());
                let mut at = 0;
                while at < members.len() {
                    assert!(members[at].0 == 8 * at && members[at].1 == 8);
                    at += 1;
                }
            };
        )*

        flue_verbs_abi::layouts! { $( $name { $( $member: $type ),* } )* }
    };
}

/// Declares C constants, and `CONSTANTS`, the list of them.
macro_rules! c_constants {
    ($( $constant:ident: $type:ty = $value:expr; )*) => {
        $(
            #[doc = concat!("`", stringify!($constant), "`.")]
            #[allow(non_upper_case_globals)]
            pub const $constant: $type = $value;
        )*

        pub(super) const CONSTANTS: &[(&str, i64)] = &[$( (stringify!($constant), $constant as i64), )*];
    };
}
