package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Category:  helping,
		Usage:     "print a script that completes commands and flags in a shell",
		ArgsUsage: "bash|zsh|fish",
		Description: `bash: berth completion bash > ~/.local/share/bash-completion/completions/berth
zsh:  berth completion zsh > "${fpath[1]}/_berth"
fish: berth completion fish > ~/.config/fish/completions/berth.fish

A new shell has it then; for the one that runs: source <(berth completion bash)`,
		Action: func(c *cli.Context) error {
			given, err := args(c, "a shell: bash, zsh or fish")
			if err != nil {
				return err
			}
			script, ok := completionScripts[given[0]]
			if !ok {
				return usagef("there is no completion for %q, only for bash, zsh and fish", given[0])
			}
			_, err = fmt.Fprint(c.App.Writer, script)
			return err
		},
	}
}

// completeVerb is what the scripts call: the words of the line up to the cursor
// follow it. It prints what the last one could become, each with a tab and a
// description behind. Nothing means that the shell may offer files.
const completeVerb = "__complete"

var completionScripts = map[string]string{
	"bash": `# bash completion of berth
_berth() {
	local IFS=$'\n'
	COMPREPLY=($("${COMP_WORDS[0]}" ` + completeVerb + ` "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _berth berth
`,
	"zsh": `#compdef berth
# zsh completion of berth
_berth() {
	local -a found
	found=("${(@f)$("${words[1]}" ` + completeVerb + ` "${(@)words[2,CURRENT]}" 2>/dev/null | sed -e 's/:/\\:/g' -e 's/	/:/')}")
	if [[ -n "${found[1]}" ]]; then
		_describe berth found
	else
		_files
	fi
}
if [[ "${funcstack[1]}" == _berth ]]; then
	_berth
else
	compdef _berth berth
fi
`,
	"fish": `# fish completion of berth
function __berth_complete
	set -l before (commandline -opc)
	command $before[1] ` + completeVerb + ` $before[2..-1] (commandline -ct) 2>/dev/null
end
complete -c berth -a '(__berth_complete)'
`,
}
