;;; qwen-companion-slash-commands.el --- Slash commands of Qwen Code  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The slash commands that a prompt for Qwen Code can begin with: those built
;; into it, and those that the user and the project have as files.  Of the
;; files only the names are read.

;;; Code:

(require 'seq)
(require 'qwen-companion-privacy)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-slash-commands--built-in
  '(("about" . "version and environment")
    ("agents" . "subagents")
    ("approval-mode" . "which tools it may use unasked")
    ("auth" . "connect to a provider of models")
    ("branch" . "go on in a copy of the conversation")
    ("btw" . "ask something beside the conversation")
    ("bug" . "report a bug of the CLI")
    ("cd" . "work in another directory")
    ("clear" . "begin a new conversation")
    ("compress" . "replace the conversation by a summary")
    ("config" . "read or set a setting by its key")
    ("context" . "what fills the context")
    ("copy" . "copy the last answer")
    ("delete" . "delete a recorded conversation")
    ("diff" . "what has changed since HEAD")
    ("directory" . "directories of the workspace")
    ("docs" . "the manual of the CLI in a browser")
    ("doctor" . "check the installation")
    ("editor" . "the editor it opens")
    ("effort" . "how hard the model thinks")
    ("export" . "write the conversation to a file")
    ("extensions" . "extensions of the CLI")
    ("forget" . "remove something remembered")
    ("fork" . "an agent in the background that knows the conversation")
    ("goal" . "set a goal for the conversation")
    ("help" . "what the CLI can do")
    ("hooks" . "hooks of the CLI")
    ("ide" . "the connection to Emacs")
    ("init" . "write a QWEN.md for the project")
    ("language" . "language of the CLI and of answers")
    ("mcp" . "MCP servers")
    ("memory" . "what is remembered")
    ("model" . "choose the model")
    ("permissions" . "rules about tools")
    ("plan" . "plan before doing")
    ("quit" . "end the CLI")
    ("recap" . "the conversation in one line")
    ("remember" . "remember something in later conversations")
    ("rename" . "name the conversation")
    ("resume" . "go on with a recorded conversation")
    ("settings" . "settings of the CLI")
    ("skills" . "skills of the model")
    ("stats" . "what the conversation has used")
    ("summary" . "write a summary of the project to a file")
    ("tasks" . "tasks in the background")
    ("theme" . "colours of the CLI")
    ("tools" . "tools of the model")
    ("update" . "update the CLI")
    ("vim" . "keys of vi in the CLI"))
  "Alist of commands of Qwen Code 0.24, without the slash, and descriptions.
Left out are those that do nothing in a CLI with an IDE, and those that
it knows only where a setting turns them on.")

(defun qwen-companion-slash-commands (root)
  "Return the slash commands for a prompt about the project ROOT.
Each is (NAME . ABOUT), both text, NAME without the slash.  A command of
the project hides one of the user, and that a built-in one."
  (let ((home (or (getenv "QWEN_HOME") "~/.qwen")))
    (seq-uniq
     (append
      (qwen-companion-slash-commands--files (expand-file-name ".qwen/commands" root)
                                            "of the project")
      (qwen-companion-slash-commands--files (expand-file-name "commands" home)
                                            "your own")
      qwen-companion-slash-commands--built-in)
     (lambda (one other) (equal (car one) (car other))))))

(defun qwen-companion-slash-commands--files (directory about)
  "Return the commands that are files below DIRECTORY, each with ABOUT."
  ;; No name of a file in the project may reach another machine.
  (let ((file-name-handler-alist nil))
    (when (file-accessible-directory-p directory)
      (mapcar (lambda (name) (cons name about))
              (seq-filter
               #'qwen-companion-slash-commands--callable-p
               (mapcar (lambda (file)
                         (qwen-companion-slash-commands--name
                          (file-relative-name file directory)))
                       (seq-remove #'qwen-companion-slash-commands--hidden-p
                                   (directory-files-recursively
                                    directory "\\.\\(?:md\\|toml\\)\\'"
                                    nil #'file-readable-p))))))))

(defun qwen-companion-slash-commands--hidden-p (file)
  "Return non-nil when CLIs are not told of FILE by the choice of its buffer."
  (when-let* ((buffer (get-file-buffer file)))
    (qwen-companion-privacy-secret-p buffer)))

(defun qwen-companion-slash-commands--name (file)
  "Return the name of the command in FILE, relative to the directory of commands."
  (mapconcat (lambda (part) (string-replace ":" "_" part))
             (split-string (file-name-sans-extension file) "/")
             ":"))

(defun qwen-companion-slash-commands--callable-p (name)
  "Return non-nil when a person can read NAME and a prompt can have it."
  (not (or (string-match-p "[[:space:]]" name)
           (not (equal name (qwen-companion-untrusted-text name))))))

(provide 'qwen-companion-slash-commands)
;;; qwen-companion-slash-commands.el ends here
