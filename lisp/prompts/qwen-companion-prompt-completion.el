;;; qwen-companion-prompt-completion.el --- Completion of @file and /command in prompts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `@' and any part of a file's name complete to a file of the project, in
;; prompts for a CLI and in chats.  The completion category is that of
;; `project-find-file', so the user's completion style for it applies.  Without
;; a project, or after `/', `./' and `../', a name is completed directory by
;; directory.
;;
;; The slash commands for a prompt for Qwen Code are its built-in ones, and
;; those in files of the user and the project.  Only the names of the files are
;; read.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-privacy)
(require 'qwen-companion-programs)
(require 'qwen-companion-roots)
(require 'qwen-companion-quote)
(require 'qwen-companion-untrusted)

;;; Files

(declare-function project-files "project" (project &optional dirs))

(defconst qwen-companion-prompt-completion-character "\\(?:\\\\.\\|[^ \t\n\\]\\)"
  "Matches a character of a file name after `@', quoted or not.")

(defconst qwen-companion-prompt-completion--files-age 30
  "Seconds for which the list of a project's files is reused.")

(defvar-local qwen-companion-prompt-completion--files nil
  "The files of a project as last read: (TIME ROOT . NAMES).")

(defvar qwen-companion-prompt-completion--remote-files (make-hash-table :test #'equal)
  "Files below remote directories: (TIME . NAMES) by directory.
TIME is that of the last request.")

(defun qwen-companion-prompt-completion-remote-files (root)
  "Return the known files below ROOT, a remote directory.
Request them from the relay unless that was done recently."
  (let ((known (gethash root qwen-companion-prompt-completion--remote-files)))
    (unless (and known
                 (< (- (float-time) (car known)) qwen-companion-prompt-completion--files-age))
      (puthash root (cons (float-time) (cdr known)) qwen-companion-prompt-completion--remote-files)
      (qwen-companion-backend-call
       'list-place-files (list :place (file-remote-p root)
                               :directory (directory-file-name (file-remote-p root 'localname)))))
    (cdr known)))

;;;###autoload
(defun qwen-companion-prompt-completion-on-place-files (payload)
  "Handle the `place-files' call: store the names of files in PAYLOAD."
  (puthash (qwen-companion-places-directory
            (concat (qwen-companion-place-files-place payload)
                    (qwen-companion-place-files-directory payload)))
           (cons (float-time) (mapcar #'qwen-companion-quote-escape
                                      (qwen-companion-place-files-files payload)))
           qwen-companion-prompt-completion--remote-files)
  nil)

(defun qwen-companion-prompt-completion--files (root)
  "Return the files of the project of ROOT, a local directory.
Return only those below ROOT, relative to it and escaped; nil without a
project.  Leave out names with a line end, which would end the word."
  (pcase qwen-companion-prompt-completion--files
    (`(,(and time (guard (< (- (float-time) time) qwen-companion-prompt-completion--files-age)))
       ,(pred (equal root)) . ,names)
     names)
    (_
     (require 'project)
     (let* ((project (qwen-companion-roots-project root))
            ;; It signals an error if git does, as in a broken repository.
            (files (and project (ignore-errors
                                       (qwen-companion-programs-call-with-git
                                        root #'project-files project))))
            (names (cl-loop for file in files
                            for name = (qwen-companion-quote-relative-name file root)
                            unless (or (file-name-absolute-p name)
                                       (string-search "\n" name))
                            collect (qwen-companion-quote-escape name))))
       (setq qwen-companion-prompt-completion--files (cons (float-time) (cons root names)))
       names))))

(defun qwen-companion-prompt-completion-file (root limit)
  "Complete the file of ROOT, a directory, after `@' before point.
Search for the `@' no further back than LIMIT.  Return the value of a
function in `completion-at-point-functions', nil without an `@'."
  (when-let* ((start (qwen-companion-prompt-completion--start limit)))
    (let* ((root (file-name-as-directory root))
           (far (file-remote-p root))
           (files (cond (far (qwen-companion-prompt-completion-remote-files root))
                        ((not (string-match-p "\\`\\(?:/\\|~\\|\\.\\.?/\\)"
                                              (buffer-substring-no-properties start (point))))
                         (qwen-companion-prompt-completion--files root)))))
      (list start (point)
            (if (or far files)
                (lambda (string predicate action)
                  (if (eq action 'metadata)
                      '(metadata (category . project-file))
                    (complete-with-action action files string predicate)))
              (qwen-companion-prompt-completion--directory-table root))))))

(defun qwen-companion-prompt-completion--start (limit)
  "Return the beginning of the file name after `@' that ends at point, or nil.
Search for the `@' no further back than LIMIT."
  (save-excursion
    (let ((end (point))
          start)
      (goto-char (max limit (line-beginning-position)))
      (while (and (not start)
                  (re-search-forward
                   (concat "\\(?:^\\|[ \t(]\\)@\\(" qwen-companion-prompt-completion-character "*\\)")
                   end t))
        (when (= end (point))
          (setq start (match-beginning 1))))
      start)))

(defun qwen-companion-prompt-completion--directory-table (root)
  "Return a completion table of file names, relative to ROOT or absolute.
It reads one local directory at a time."
  (completion-table-with-quoting
   (lambda (string predicate action)
     (let ((default-directory root)
           (file-name-handler-alist nil))
       (completion-file-name-table
        string
        (lambda (name)
          (not (or (member name '("./" "../" ".git/"))
                   ;; A line end would end the word, even quoted.
                   (string-search "\n" name)
                   (and predicate (not (funcall predicate name))))))
        action)))
   #'qwen-companion-quote-unescape
   #'qwen-companion-prompt-completion--requote))

(defun qwen-companion-prompt-completion--requote (position name)
  "Return the quoted position of POSITION in the file name written as NAME.
See `completion-table-with-quoting'."
  (let ((written 0))
    (dotimes (_ position)
      (cl-incf written (if (eq ?\\ (aref name written)) 2 1)))
    (cons written #'qwen-companion-quote-escape)))

;;; Slash commands

(defconst qwen-companion-prompt-completion--built-in
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
Commands that do nothing in a CLI with an IDE are left out, and those that
a setting must turn on.")

(defun qwen-companion-prompt-completion-commands (root)
  "Return the slash commands for a prompt about the project ROOT.
Each is (NAME . DESCRIPTION), NAME without the slash.  A command of the
project hides one of the user, and that a built-in one."
  (let ((home (or (getenv "QWEN_HOME") "~/.qwen")))
    (seq-uniq
     (append
      (qwen-companion-prompt-completion--command-files (expand-file-name ".qwen/commands" root)
                                            "of the project")
      (qwen-companion-prompt-completion--command-files (expand-file-name "commands" home)
                                            "your own")
      qwen-companion-prompt-completion--built-in)
     (lambda (one other) (equal (car one) (car other))))))

(defun qwen-companion-prompt-completion--command-files (directory about)
  "Return the commands in files below DIRECTORY, each with the description ABOUT."
  ;; No name of a file in the project may reach another machine.
  (let ((file-name-handler-alist nil))
    (when (file-accessible-directory-p directory)
      (cl-loop for file in (directory-files-recursively
                            directory "\\.\\(?:md\\|toml\\)\\'" nil #'file-readable-p)
               for buffer = (get-file-buffer file)
               for name = (qwen-companion-prompt-completion--name
                           (file-relative-name file directory))
               unless (or (and buffer (qwen-companion-privacy-secret-p buffer))
                          ;; It is unreadable, or cannot be in a prompt.
                          (string-match-p "[[:space:]]" name)
                          (not (equal name (qwen-companion-untrusted-text name))))
               collect (cons name about)))))

(defun qwen-companion-prompt-completion--name (file)
  "Return the name of the command in FILE, relative to the directory of commands."
  (mapconcat (lambda (part) (string-replace ":" "_" part))
             (split-string (file-name-sans-extension file) "/")
             ":"))

(provide 'qwen-companion-prompt-completion)
;;; qwen-companion-prompt-completion.el ends here
