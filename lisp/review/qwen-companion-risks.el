;;; qwen-companion-risks.el --- Warn about files that are risky to write  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A prompt injection can make a model write any file that its CLI may write.
;; A review warns of risky files: those that make this machine run something,
;; those that a link puts outside of the workspace, and those with a
;; misleading name.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-risky-files
  '(("git" ".git" ".git/*" ".gitconfig" ".config/git/*" ".husky/*"
     ".pre-commit-config.yaml" "lefthook.yml")
    ("Mercurial" ".hg/hgrc" ".hgrc")
    ("direnv" ".envrc" ".direnvrc" ".config/direnv/*")
    ("mise" "mise.toml" ".mise.toml" ".config/mise/*")
    ("Emacs" ".dir-locals.el" ".dir-locals-2.el" ".emacs" ".emacs.*"
     ".config/emacs/*.el")
    ("Vim" ".vimrc" ".exrc" ".nvimrc" ".nvim.lua" ".vim/*" ".config/nvim/*")
    ("VS Code" ".vscode/tasks.json" ".vscode/launch.json"
     ".vscode/settings.json" "*.code-workspace" ".devcontainer.json"
     ".devcontainer/*")
    ("JetBrains" ".idea/workspace.xml" ".idea/runConfigurations/*"
     ".idea/externalTools.xml")
    ("shell" ".profile" ".bashrc" ".bash_profile" ".bash_login"
     ".bash_logout" ".bash_aliases" ".zshrc" ".zshenv" ".zprofile" ".zlogin"
     ".zlogout" ".kshrc" ".mkshrc" ".cshrc" ".tcshrc" ".login" ".logout"
     ".inputrc" ".config/fish/*" "/etc/profile" "/etc/profile.d/*"
     "/etc/bash.bashrc" "/etc/zsh/*")
    ("desktop session" ".xprofile" ".xinitrc" ".xsession" ".xsessionrc"
     ".pam_environment" ".config/environment.d/*" ".config/autostart/*"
     "Library/LaunchAgents/*")
    ("system" ".config/systemd/*" "/etc/systemd/*" "/etc/cron*"
     "/var/spool/cron/*" "/etc/ld.so.preload")
    ("ssh" ".ssh/*")
    ("tmux or screen" ".tmux.conf" ".config/tmux/*" ".screenrc")
    ("debugger" ".gdbinit" ".lldbinit")
    ("Python" "sitecustomize.py" "usercustomize.py" "*.pth" ".pdbrc")
    ("R" ".Rprofile")
    ("Ruby" ".irbrc" ".pryrc")
    ("Node.js" ".npmrc" ".yarnrc" ".yarnrc.yml" ".pnpmfile.cjs")
    ("cargo" ".cargo/config" ".cargo/config.toml")
    ("GitHub" ".github/workflows/*")
    ("Qwen Code" ".qwen/settings.json" ".qwen/.env" ".qwen/extensions/*"
     "/etc/qwen-code/*")
    ("Gemini CLI" ".gemini/settings.json" ".gemini/.env"
     ".gemini/extensions/*")
    ("agents" ".mcp.json" ".claude/settings.json"
     ".claude/settings.local.json" ".cursor/mcp.json" ".cursor/hooks.json"))
  "Files that make a machine run something without being asked to.
A review of one has a warning.  The value is an alist (PROGRAM . NAMES);
PROGRAM runs the files at its start, or when it finds them.  A name that
does not begin with a slash matches the end of a file name; in it, *
matches anything.  Files that run only on request are not included, such
as \"Makefile\", \"package.json\" and tests; add them to be warned."
  :group 'qwen-companion
  :type '(alist :key-type (string :tag "Program")
                :value-type (repeat :tag "Files" string)))

(defun qwen-companion-risks--regexp (names)
  "Return a regexp that matches the file names in NAMES."
  (mapconcat (lambda (name)
               (concat "\\`" (if (string-prefix-p "/" name) "" "\\(?:[^\0]*/\\)?")
                       (string-replace "\\*" "[^\0]*" (regexp-quote name))
                       "\\'"))
             names "\\|"))

(defun qwen-companion-risks-run-warning (path)
  "Return a warning if a file named PATH can run code, or nil.
Only the name is examined: the file may be on another machine."
  ;; Some file systems ignore case.
  (let ((case-fold-search t))
    (when-let* ((entry (cl-find-if
                        (lambda (entry)
                          (string-match-p (qwen-companion-risks--regexp (cdr entry)) path))
                        qwen-companion-risky-files)))
      (format "can run code (%s)" (car entry)))))

(defun qwen-companion-risks-examine (path roots)
  "Return (REAL . WARNING) about writing the local file PATH.
If PATH is a symbolic link to a risky file, or to one outside of ROOTS, a
list of directories, REAL is its target, else nil.  WARNING is one line,
or nil."
  (let* ((file-name-handler-alist nil)
         (real (file-truename path))
         (link (not (equal real path)))
         (out (and link
                   (not (cl-some
                         (lambda (root)
                           (string-prefix-p
                            (file-name-as-directory (file-truename root)) real))
                         roots))))
         (named (qwen-companion-risks-run-warning path))
         (hidden (and link (not named) (qwen-companion-risks-run-warning real)))
         (warnings
          (list named
                hidden
                (when (or out hidden)
                  (format (if out "a link out of the workspace to %s" "a link to %s")
                          (qwen-companion-untrusted-path real)))
                (unless (equal path (qwen-companion-untrusted-text path))
                  "its name has invisible characters (escaped here)"))))
    (cons (and (or out hidden) real)
          (when (setq warnings (delq nil warnings))
            (mapconcat #'identity warnings "; ")))))

(provide 'qwen-companion-risks)
;;; qwen-companion-risks.el ends here
