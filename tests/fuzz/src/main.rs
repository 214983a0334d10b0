//! Generates seeds for the fuzzer, and runs the fuzzer's inputs without it.
//!
//!     flue-fuzz seeds DIR             writes a seed directory for each target
//!     flue-fuzz replay FILE...        prints and runs each file of `segments`; of a failing file, only the operations
//!                                     that the failure needs
//!     flue-fuzz iwarp TARGET FILE...  runs files of one of iWARP's targets
//!     flue-fuzz verbs FILE...         prints and runs the calls of each file of `verbs`
//!     flue-fuzz modify FILE...        runs the changes of each file of `modify`

use std::{env, error::Error, fs, path::Path, process::ExitCode};

use flue_fuzz::{capture, iwarp, modify, random, run, script, shrink, verbs};

/// Number of seeded scripts among the seeds.
const RANDOM: u64 = 100;

fn captures() -> Result<Vec<capture::Frame>, Box<dyn Error>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data");
    let mut paths: Vec<_> =
        fs::read_dir(data)?.map(|it| it.map(|it| it.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|it| it == "pcap"));
    paths.sort();
    let mut frames = Vec::new();
    for path in paths {
        frames.extend(capture::read(&path)?);
    }
    Ok(frames)
}

fn write_seeds(directory: &Path) -> Result<(), Box<dyn Error>> {
    let frames = captures()?;
    let mut scripts = capture::scripts(&frames);
    scripts.extend((0..RANDOM).map(random::script));
    for kind in ["segments", "frames"] {
        fs::create_dir_all(directory.join(kind))?;
    }
    for (number, (setup, ops)) in scripts.iter().enumerate() {
        let path = directory.join(format!("segments/{number:03}"));
        fs::write(path, script::write(setup, ops))?;
    }
    for (number, frame) in frames.iter().enumerate() {
        fs::write(directory.join(format!("frames/{number:04}")), &frame.bytes)?;
    }
    for (target, _) in iwarp::TARGETS {
        fs::create_dir_all(directory.join(target))?;
        for (number, octets) in iwarp::seeds(target, &frames).iter().enumerate() {
            fs::write(directory.join(format!("{target}/{number:04}")), octets)?;
        }
    }
    fs::create_dir_all(directory.join("verbs"))?;
    for (name, calls) in verbs::seeds::named() {
        fs::write(directory.join("verbs").join(name), verbs::write(&calls))?;
    }
    fs::create_dir_all(directory.join("modify"))?;
    for seed in 0..RANDOM {
        fs::write(directory.join(format!("modify/{seed:03}")), modify::script(seed))?;
    }
    println!("{} scripts, {} frames", scripts.len(), frames.len());
    Ok(())
}

fn replay(path: &Path) -> Result<(), Box<dyn Error>> {
    let Some((setup, ops)) = script::read(&fs::read(path)?) else {
        return Err("shorter than a setup".into());
    };
    let ops = shrink::shrink(&setup, ops);
    println!("{setup:#?}");
    ops.iter().for_each(|op| println!("    {op:?}"));
    println!("{:#?}", run(&setup, &ops));
    Ok(())
}

fn replay_iwarp(target: &str, files: &[&str]) -> Result<(), Box<dyn Error>> {
    let found = iwarp::TARGETS.iter().find(|(name, _)| *name == target);
    let (_, check) = found.ok_or_else(|| format!("unknown target: {target}"))?;
    for file in files {
        check(&fs::read(file)?);
        println!("{file}: no violation");
    }
    Ok(())
}

fn replay_verbs(path: &Path) -> Result<(), Box<dyn Error>> {
    let calls = verbs::read(&fs::read(path)?);
    calls.iter().for_each(|call| println!("    {call:?}"));
    println!("{:#?}", verbs::run(&calls));
    Ok(())
}

fn replay_modify(path: &Path) -> Result<(), Box<dyn Error>> {
    println!("{:#?}", modify::run(&fs::read(path)?));
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["seeds", directory] => write_seeds(Path::new(directory)),
        ["replay", ref files @ ..] => files.iter().try_for_each(|file| replay(Path::new(file))),
        ["iwarp", target, ref files @ ..] => replay_iwarp(target, files),
        ["verbs", ref files @ ..] => {
            files.iter().try_for_each(|file| replay_verbs(Path::new(file)))
        }
        ["modify", ref files @ ..] => {
            files.iter().try_for_each(|file| replay_modify(Path::new(file)))
        }
        _ => Err("flue-fuzz seeds DIR | replay FILE... | iwarp TARGET FILE... | verbs FILE... | \
                      modify FILE..."
            .into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flue-fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}
