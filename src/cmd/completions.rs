//! `flue completions`: prints the completion script of a shell.

use clap::Args;
use clap_complete::Shell;

use crate::{failure::Failure, report::Console};

/// Print the completion script of a shell
///
/// Completes commands, options and their values.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  # this shell
  source <(flue completions bash)

  # later shells: the directory must exist
  mkdir -p ~/.local/share/bash-completion/completions ~/.zfunc ~/.config/fish/completions
  flue completions bash > ~/.local/share/bash-completion/completions/flue
  flue completions zsh > ~/.zfunc/_flue
  flue completions fish > ~/.config/fish/completions/flue.fish")]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Runs `flue completions`. `command` is the command line.
///
/// # Errors
/// The script is not text.
pub fn run(
    args: &CompletionsArgs,
    command: &mut clap::Command,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let script = String::from_utf8(script(args.shell, command))
        .map_err(|error| Failure::work(format!("script: {error}")))?;
    console.print(script.trim_end());
    Ok(())
}

fn script(shell: Shell, command: &mut clap::Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "flue", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        process::{self, Command},
    };

    use super::*;
    use crate::cli;

    #[test]
    fn bash_completes_commands_options_and_values() {
        let file = env::temp_dir().join(format!("flue-completions-{}", process::id()));
        fs::write(&file, script(Shell::Bash, &mut cli::command())).unwrap();
        let completed = |line: &[&str]| {
            // The function of the script that bash calls, with its variables.
            let probe = r#"source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
                complete -p flue | grep -q -- '-F _flue' && _flue flue "${@: -1}" "${@: -2:1}"
                echo "${COMPREPLY[*]}""#;
            let mut bash = Command::new("bash");
            bash.args(["--norc", "-euc", probe, "bash"]).arg(&file).args(line);
            let output = bash.output().expect("bash starts");
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let found =
            [&["flue", "doc"][..], &["flue", "run", "--dev"], &["flue", "run", "--device", ""]]
                .map(completed);
        fs::remove_file(&file).unwrap();
        assert_eq!(found, ["doctor", "--device", "roce iwarp"]);
    }

    #[test]
    fn scripts_of_all_shells_contain_the_commands() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let script = String::from_utf8(script(shell, &mut cli::command())).unwrap();
            for command in cli::command().get_subcommands().filter(|it| !it.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
