#include "tieshard/cli/completion.h"

#include <memory>

#include <CLI/App.hpp>

#include "tieshard/cli/flags.h"
#include "tieshard/core/base/error.h"

namespace tieshard::cli {
namespace {

/// In single quotes, for any of the three shells.
std::string quoted(const std::string& text, bool fish) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += fish ? "\\'" : "'\\''";
    } else if (c == '\\' && fish) {
      result += "\\\\";
    } else {
      result += c == '\n' ? ' ' : c;
    }
  }
  return result + "'";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += concat(text.empty() ? "" : " ", word);
  }
  return text;
}

std::string flags_of(const VerbEntry& verb) {
  std::vector<std::string> names;
  for (const FlagEntry& flag : verb.flags) {
    if (!flag.is_positional()) {
      names.push_back(flag.name);
    }
  }
  names.emplace_back("--help");
  return joined(names);
}

/// The words of a flag's value, by verb and flag: "plan--shard-dim) words='last first' ;;".
std::string bash_words(const std::vector<VerbEntry>& verbs) {
  std::string text;
  for (const VerbEntry& verb : verbs) {
    for (const FlagEntry& flag : verb.flags) {
      if (!flag.words.empty()) {
        text += concat("    ",
                       verb.name,
                       flag.is_positional() ? "-" : "",
                       flag.name,
                       ") words=",
                       quoted(joined(flag.words), false),
                       " ;;\n");
      }
    }
  }
  return text;
}

std::string bash_script(const std::vector<VerbEntry>& verbs) {
  std::string names;
  std::string flags;
  for (const VerbEntry& verb : verbs) {
    names += concat(names.empty() ? "" : " ", verb.name);
    if (!verb.computes) {
      flags += concat("    ", verb.name, ") flags=", quoted(flags_of(verb), false), " ;;\n");
    }
  }
  return concat(
      "# Completion of tieshard for bash. Load it: source <(tieshard completion bash)\n"
      "_tieshard() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}\n"
      "  local verbs=",
      quoted(names, false),
      " flags= words=\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"$verbs --help --version\" -- \"$word\"))\n"
      "    return\n"
      "  fi\n"
      "  case $verb in\n"
      "    help) words=$verbs ;;\n"
      "    completion) words='bash zsh fish' ;;\n",
      flags,
      "    *) flags=$(\"${COMP_WORDS[0]}\" \"$verb\" --help 2>/dev/null | grep -oE '^  (-[A-Za-z],)?--[a-z0-9-]+' | "
      "sed 's/.*--/--/') ;;\n"
      "  esac\n"
      "  case $verb$before in\n",
      bash_words(verbs),
      "  esac\n"
      "  if [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
      "  elif [ -n \"$words\" ]; then\n"
      "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "  else\n"
      "    local IFS=$'\\n'\n" // a name with a space is one word
      "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _tieshard tieshard\n");
}

std::string zsh_script(const std::vector<VerbEntry>& verbs) {
  return concat(
      "# Completion of tieshard for zsh. Load it: source <(tieshard completion zsh)\n"
      "autoload -U +X compinit && compinit -u\n"
      "autoload -U +X bashcompinit && bashcompinit\n",
      bash_script(verbs));
}

std::string fish_script(const std::vector<VerbEntry>& verbs) {
  std::string text = "# Completion of tieshard for fish. Load it: tieshard completion fish | source\n";
  for (const VerbEntry& verb : verbs) {
    text +=
        concat("complete -c tieshard -n __fish_use_subcommand -a ", verb.name, " -d ", quoted(verb.help, true), "\n");
    for (const FlagEntry& flag : verb.flags) {
      if (flag.is_positional()) {
        continue;
      }
      text += concat("complete -c tieshard -n '__fish_seen_subcommand_from ",
                     verb.name,
                     "' -l ",
                     flag.name.substr(2),
                     flag.value.empty() ? "" : " -r",
                     flag.words.empty() ? "" : concat(" -f -a ", quoted(joined(flag.words), true)),
                     " -d ",
                     quoted(flag.help, true),
                     "\n");
    }
  }
  return text;
}

} // namespace

std::string completion_script(const std::vector<VerbEntry>& verbs, const std::string& shell) {
  return shell == "bash" ? bash_script(verbs) : shell == "zsh" ? zsh_script(verbs) : fish_script(verbs);
}

void add_completion(CLI::App& app, Verb& chosen) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("completion", "Print a script that completes verbs and flags in a shell");
  verb->add_option("SHELL", *shell, "Which one")
      ->required()
      ->type_name("bash|zsh|fish")
      ->check(one_of({"bash", "zsh", "fish"}));
  verb->footer(
      "Examples:\n"
      "  source <(tieshard completion bash)\n"
      "  tieshard completion fish > ~/.config/fish/completions/tieshard.fish");
  verb->callback([&app, shell, &chosen] {
    chosen = [&app, shell](const Console& console) {
      console.out.text << completion_script(verb_table(app), *shell);
      return kExitSuccess;
    };
  });
}

} // namespace tieshard::cli
