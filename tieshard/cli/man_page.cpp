#include "tieshard/cli/man_page.h"

#include <sstream>

#include <CLI/App.hpp>

#include "tieshard/cli/app.h"
#include "tieshard/cli/runtime_program.h"
#include "tieshard/cli/temporary_folder.h"
#include "tieshard/core/base/error.h"
#include "tieshard/core/base/file.h"

namespace tieshard::cli {
namespace {

/// Text that is no request: a backslash is written, a hyphen is one that can be copied, and no line begins with a dot
/// or an apostrophe.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool first = result.empty() || result.back() == '\n';
    if (first && (c == '.' || c == '\'')) {
      result += "\\&";
    }
    result += c == '\\' ? std::string("\\e") : c == '-' ? std::string("\\-") : std::string(1, c);
  }
  return result;
}

/// Lines as they are, such as examples.
std::string verbatim(const std::string& text) {
  return concat(".nf\n", escaped(text), text.ends_with('\n') ? "" : "\n", ".fi\n");
}

std::string synopsis(const VerbEntry& verb) {
  std::string text = concat("\\fBtieshard ", escaped(verb.name), "\\fR");
  for (const FlagEntry& flag : verb.flags) {
    if (flag.is_positional()) {
      text += concat(" \\fI", escaped(flag.name), "\\fR");
    } else if (flag.required) {
      text += concat(" \\fB", escaped(flag.name), "\\fR \\fI", escaped(flag.value), "\\fR");
    }
  }
  return concat(text, " [\\fIOPTIONS\\fR]\n");
}

std::string flag_text(const FlagEntry& flag) {
  const std::string value =
      flag.value.empty() || flag.is_positional() ? "" : concat(" \\fI", escaped(flag.value), "\\fR");
  return concat(".TP\n\\fB", escaped(flag.name), "\\fR", value, "\n", escaped(flag.help), "\n");
}

std::string verb_text(const VerbEntry& verb) {
  std::string text = concat(".SS ", escaped(verb.name), "\n", synopsis(verb), ".PP\n", escaped(verb.help), ".\n");
  if (verb.computes && !verb.usage.empty()) {
    return text + concat(".PP\n", verbatim(verb.usage));
  }
  if (verb.computes) {
    return text + concat(".PP\nIts flags are those of tieshard\\-runtime, which computes: \\fBtieshard ",
                         escaped(verb.name),
                         " \\-\\-help\\fR lists them.\n");
  }
  for (const FlagEntry& flag : verb.flags) {
    text += flag_text(flag);
  }
  return verb.footer.empty() ? text : concat(text, ".PP\n", verbatim(verb.footer));
}

/// What tieshard-runtime says of its verb; nothing where it is not beside this program.
std::string usage_of(const std::string& verb, const TemporaryFolder& folder) {
  try {
    const std::filesystem::path said = folder / verb;
    return run_program(runtime_program(), {verb, "--help"}, said) == 0 ? read_text_file(said) : "";
  } catch (const Error&) {
    return {};
  }
}

std::vector<VerbEntry> with_usage(std::vector<VerbEntry> verbs) {
  const TemporaryFolder folder("man");
  for (VerbEntry& verb : verbs) {
    if (verb.computes) {
      verb.usage = usage_of(verb.name, folder);
    }
  }
  return verbs;
}

} // namespace

std::string man_page(const std::vector<VerbEntry>& verbs, const std::string& about, const std::string& examples) {
  std::string text = concat(".TH TIESHARD 1 \"\" \"tieshard ",
                            version(),
                            "\" \"tieshard manual\"\n",
                            ".SH NAME\ntieshard \\- tied weights, sharded over ranks\n",
                            ".SH SYNOPSIS\n\\fBtieshard\\fR \\fIVERB\\fR [\\fIOPTIONS\\fR]\n",
                            ".SH DESCRIPTION\n",
                            escaped(about),
                            "\n",
                            ".SH VERBS\n");
  for (const VerbEntry& verb : verbs) {
    text += verb_text(verb);
  }
  return concat(
      text,
      ".SH EXAMPLES AND EXIT STATUS\n",
      verbatim(examples),
      ".SH ENVIRONMENT\n.TP\n\\fBNO_COLOR\\fR\nSet and not empty: no colours. They are used on a terminal only.\n"
      ".TP\n\\fBTMPDIR\\fR\nWhere \\fBdemo\\fR and \\fBdoctor \\-\\-try\\fR keep what they make for themselves.\n");
}

void add_man(CLI::App& app, Verb& chosen) {
  CLI::App* verb = app.add_subcommand("man", "Print the manual page, for man(1)");
  verb->footer(
      "Examples:\n"
      "  tieshard man | man -l -\n"
      "  tieshard man > /usr/local/share/man/man1/tieshard.1");
  verb->callback([&app, &chosen] {
    chosen = [&app](const Console& console) {
      console.out.text << man_page(with_usage(verb_table(app)), app.get_description(), app.get_footer());
      return kExitSuccess;
    };
  });
}

} // namespace tieshard::cli
