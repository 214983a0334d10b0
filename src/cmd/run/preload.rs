//! Shared objects that substitute the two libraries, for programs that ignore LD_LIBRARY_PATH.
//!
//! The loader searches DT_RPATH before LD_LIBRARY_PATH, and wrappers of programs replace that variable. But the loader
//! does not search for a name that an object in LD_PRELOAD already has (DT_SONAME). An object has one such name, so
//! there is one object per library. It has no code and no symbols: only the versions that programs require, and a
//! dependency on the library. The library's symbols are found after those of the program and of the program's direct
//! dependencies.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _, path::Path};

use flue_verbs_abi::symbols;
use object::{
    Endianness, elf,
    elf::FileHeader64 as Header,
    read::elf::FileHeader as _,
    write::elf::{FileHeader, ProgramHeader, Verdef, Writer},
};

/// Alignment of the segment, bytes: the largest page size of the supported machines.
const PAGE_BYTES: u64 = 65_536;
/// Index of the first version; index 1 is the object itself.
const FIRST_VERSION: u16 = 2;

/// Returns an object with the name `name` that depends on the library at `path`, for the machine of that library.
///
/// # Errors
/// The library is not a 64-bit ELF file.
pub(super) fn object(name: &str, path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: object::Error| format!("{}: {error}", path.display());
    let library = fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let library = object::ReadCache::new(library);
    let header = Header::<Endianness>::parse(&library).map_err(failed)?;
    write(name, path.as_os_str(), header).map_err(|error| format!("{name}: {error}"))
}

fn write(
    name: &str,
    library: &OsStr,
    machine: &Header<Endianness>,
) -> Result<Vec<u8>, object::write::Error> {
    let endian = machine.e_ident.data;
    let endian = if endian == elf::ELFDATA2MSB { Endianness::Big } else { Endianness::Little };
    let versions: Vec<_> = symbols::versions().map(|(version, _)| version).collect();
    let mut octets = Vec::new();
    let mut out = Writer::new(endian, true, &mut octets);
    let soname = out.add_dynamic_string(name.as_bytes());
    let needed = out.add_dynamic_string(library.as_bytes());
    let versions: Vec<_> =
        versions.iter().map(|version| out.add_dynamic_string(version.as_bytes())).collect();
    out.reserve_null_dynamic_symbol_index();
    out.reserve_file_header();
    out.reserve_program_headers(3);
    let hash = out.reserve_hash(1, 1);
    let symbols = out.reserve_dynsym();
    let strings = out.reserve_dynstr();
    let version_of_symbols = out.reserve_gnu_versym();
    let definitions = out.reserve_gnu_verdef(versions.len() + 1, versions.len() + 1);
    let strings_bytes = out.dynstr_len() as u64;
    let entries = [
        (elf::DT_HASH, hash as u64),
        (elf::DT_SYMTAB, symbols as u64),
        (elf::DT_SYMENT, size_of::<elf::Sym64<Endianness>>() as u64),
        (elf::DT_STRTAB, strings as u64),
        (elf::DT_STRSZ, strings_bytes),
        (elf::DT_VERSYM, version_of_symbols as u64),
        (elf::DT_VERDEF, definitions as u64),
        (elf::DT_VERDEFNUM, versions.len() as u64 + 1),
        (elf::DT_NULL, 0),
    ];
    let dynamic_bytes = (entries.len() + 2) * size_of::<elf::Dyn64<Endianness>>();
    let dynamic = out.reserve_dynamic(entries.len() + 2);
    let end = out.reserved_len();

    out.write_file_header(&FileHeader {
        os_abi: machine.e_ident.os_abi,
        abi_version: machine.e_ident.abi_version,
        e_type: elf::ET_DYN,
        e_machine: machine.e_machine(endian),
        e_entry: 0,
        e_flags: machine.e_flags(endian),
    })?;
    out.write_align_program_headers();
    // The loader writes to the dynamic section.
    let p_flags = elf::PF_R | elf::PF_W;
    let stack = (elf::PT_GNU_STACK, 0, 0, 16);
    for (p_type, start, bytes, p_align) in [
        (elf::PT_LOAD, 0, end as u64, PAGE_BYTES),
        (elf::PT_DYNAMIC, dynamic as u64, dynamic_bytes as u64, 8),
        stack,
    ] {
        out.write_program_header(&ProgramHeader {
            p_type,
            p_flags,
            p_offset: start,
            p_vaddr: start,
            p_paddr: start,
            p_filesz: bytes,
            p_memsz: bytes,
            p_align,
        });
    }
    out.write_hash(1, 1, |_| None);
    out.write_null_dynamic_symbol();
    out.write_dynstr();
    out.write_null_gnu_versym();
    out.write_align_gnu_verdef();
    let definition = |flags, index, name| Verdef {
        version: elf::VER_DEF_CURRENT,
        flags,
        index,
        aux_count: 1,
        name,
    };
    out.write_gnu_verdef(&definition(elf::VER_FLG_BASE, 1, soname));
    for (index, version) in (FIRST_VERSION..).zip(versions) {
        out.write_gnu_verdef(&definition(0, index, version));
    }
    out.write_align_dynamic();
    out.write_dynamic_string(elf::DT_SONAME, soname);
    out.write_dynamic_string(elf::DT_NEEDED, needed);
    for (tag, value) in entries {
        out.write_dynamic(tag, value);
    }
    Ok(octets)
}

#[cfg(test)]
mod tests {
    use std::env;

    use object::read::elf::{Dyn as _, ProgramHeader as _};

    use super::*;

    #[test]
    fn object_has_one_name_and_depends_on_the_library() {
        let path = env::current_exe().unwrap();
        let octets = object("libibverbs.so.1", &path).unwrap();
        let header = Header::<Endianness>::parse(&*octets).unwrap();
        let endian = header.endian().unwrap();
        let segments = header.program_headers(endian, &*octets).unwrap();
        let dynamic = segments.iter().find_map(|it| it.dynamic(endian, &*octets).unwrap()).unwrap();
        let value = |tag| {
            let entry = dynamic.iter().find(|it| it.tag32(endian) == Some(tag));
            entry.map(|it| it.d_val(endian) as usize).unwrap()
        };
        let string = |tag| {
            let text = &octets[value(elf::DT_STRTAB) + value(tag)..];
            text.split(|octet| *octet == 0).next().unwrap()
        };
        assert_eq!(string(elf::DT_SONAME), b"libibverbs.so.1");
        assert_eq!(string(elf::DT_NEEDED), path.as_os_str().as_bytes());
        assert_eq!(value(elf::DT_VERDEFNUM), symbols::versions().count() + 1);
        assert!(object("x", Path::new("/proc/version")).is_err());
        assert!(object("x", Path::new("/nowhere")).is_err());
    }
}
