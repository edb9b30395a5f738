;;; qwen-companion-programs.el --- Start other programs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; All programs are started here; scripts/structure.el rejects other files.
;;
;; A project may come from anybody.  It may contain modules named like those of
;; Python's standard library, programs named like git in node_modules/.bin, and
;; settings that make git run programs.  So the companion's own programs are
;; found by absolute names, and run outside of the project, without PYTHON
;; variables and without relative entries of PATH.  Git runs nothing of a
;; repository.  CLIs in terminals keep the user's environment.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)

;; It has more arguments since Emacs 30.
(declare-function compilation-start "compile" t)

(defconst qwen-companion-programs--directory "/"
  "Working directory of programs that have none of their own.
Only root can put files there, unlike into the temporary directory.")

(defun qwen-companion-programs-find (name)
  "Return the absolute name of the program NAME on this machine, or nil.
Ignore relative names and relative elements of the variable `exec-path':
these refer to files of the project."
  (let ((exec-path (seq-filter (lambda (directory)
                                 (and directory (file-name-absolute-p directory)))
                               exec-path))
        (default-directory qwen-companion-programs--directory))
    (when (or (file-name-absolute-p name) (not (file-name-directory name)))
      (executable-find name))))

(defun qwen-companion-programs--needed (name)
  "Return the absolute name of the program NAME, or signal `file-missing'.
An absolute NAME need not exist yet."
  (or (and (file-name-absolute-p name) (expand-file-name name))
      (qwen-companion-programs-find name)
      (signal 'file-missing (list "Searching for program" "No such file or directory" name))))

(defun qwen-companion-programs--environment ()
  "Return `process-environment' without PYTHON variables and relative directories."
  (let ((path (getenv "PATH")))
    (append
     (when path
       (list (concat "PATH=" (string-join (seq-filter #'file-name-absolute-p
                                                      (split-string path path-separator))
                                          path-separator))))
     (seq-remove (lambda (variable) (string-prefix-p "PYTHON" variable)) process-environment))))

(defun qwen-companion-programs-start (&rest arguments)
  "Start one of the companion's own programs; return the process.
ARGUMENTS are those of `make-process'.  The program is isolated from the
project and runs in the root directory.
Signal `file-missing' when there is no such program."
  (let ((process-environment (qwen-companion-programs--environment))
        (default-directory qwen-companion-programs--directory)
        (command (plist-get arguments :command)))
    (apply #'make-process
           (plist-put (copy-sequence arguments) :command
                      (cons (qwen-companion-programs--needed (car command)) (cdr command))))))

(defun qwen-companion-programs--call (program destination arguments)
  "Run PROGRAM with ARGUMENTS, isolated; return its status.
DESTINATION is that of `call-process'.  Signal `file-missing' when there
is no such program."
  (let ((process-environment (qwen-companion-programs--environment))
        (default-directory qwen-companion-programs--directory))
    (apply #'call-process (qwen-companion-programs--needed program) nil destination nil arguments)))

(defun qwen-companion-programs-call (program &rest arguments)
  "Run PROGRAM with ARGUMENTS, isolated; return its status.
Its output goes to the current buffer, its errors are dropped.
Signal `file-missing' when there is no such program."
  (qwen-companion-programs--call program '(t nil) arguments))

(defun qwen-companion-programs-call-loudly (program &rest arguments)
  "Run PROGRAM with ARGUMENTS as `qwen-companion-programs-call' does.
Its errors go to the current buffer too."
  (qwen-companion-programs--call program t arguments))

(defun qwen-companion-programs-start-for-user (&rest arguments)
  "Start a program as the user would, in `default-directory'; return the process.
ARGUMENTS are those of `make-process'.  With :file-handler, TRAMP starts
the program remotely; else its name must be absolute."
  (apply #'make-process arguments))

(defun qwen-companion-programs-for-user (command)
  "Return COMMAND, for a terminal, with the absolute name of its program.
Signal `file-missing' when there is no such program."
  (cons (qwen-companion-programs--needed (car command)) (cdr command)))

(defun qwen-companion-programs-call-there (place program &rest arguments)
  "Run PROGRAM with ARGUMENTS at PLACE, a remote name, and return its status."
  (let ((default-directory (concat place "/")))
    (apply #'process-file program nil nil nil arguments)))

(defun qwen-companion-programs-compile (commands variables name)
  "Run COMMANDS, isolated, one after the other until one fails; return the buffer.
Each is a program and its arguments.  VARIABLES are added to the
environment.  The buffer NAME is in `compilation-mode'."
  (let ((process-environment (append variables (qwen-companion-programs--environment)))
        (default-directory qwen-companion-programs--directory))
    (qwen-companion-programs-compile-for-user
     (mapconcat (lambda (command)
                  (mapconcat #'shell-quote-argument
                             (cons (qwen-companion-programs--needed (car command)) (cdr command))
                             " "))
                commands " && ")
     name)))

(defun qwen-companion-programs-compile-for-user (command name)
  "Run the shell COMMAND as the user would, in `default-directory'.
Return its buffer NAME, which is in `compilation-mode'."
  (compilation-start command nil (lambda (_mode) name)))

(defun qwen-companion-programs-run-in-shell (prompt command)
  "Read a shell command with PROMPT, COMMAND by default, and run it for the user."
  (async-shell-command (read-shell-command prompt command)))

;;; Python

(defun qwen-companion-programs-python (python source module)
  "Return the command to run MODULE from the directory SOURCE with PYTHON.
Python is isolated: it imports nothing from the working directory, from
environment variables or from the user's packages."
  (list python "-I" "-X" "utf8" "-c"
        (concat "import sys; sys.path.insert(0, sys.argv.pop(1)); import runpy; "
                "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)")
        (directory-file-name (expand-file-name source)) module))

;;; Git

(defconst qwen-companion-programs--git-settings
  '(("core.fsmonitor" . "false") ("core.hooksPath" . "/dev/null") ("core.untrackedCache" . "false")
    ("submodule.recurse" . "false") ("status.submoduleSummary" . "false"))
  "Settings that stop git from running anything of a repository except filters.")

(defconst qwen-companion-programs--git-variables
  '("GIT_OPTIONAL_LOCKS=0" "GIT_TERMINAL_PROMPT=0" "GIT_ALLOW_PROTOCOL=none" "GIT_NO_LAZY_FETCH=1"
    "GIT_PAGER=cat")
  "Variables that stop git from prompting, using a network and writing the index.")

(defun qwen-companion-programs--git-options (git directory scopes)
  "Return settings for GIT in DIRECTORY, an alist of names and values.
They keep git from running anything of the repository, and turn off filters
from settings with a scope that matches SCOPES."
  (let (filters)
    (with-temp-buffer
      (unless (eql 0 (qwen-companion-programs-call
                      git "-C" directory "config" "--show-scope" "--list" "-z" "--name-only"))
        (user-error "Git cannot read its settings for %s; git config --list --show-scope shows the reason"
                    (abbreviate-file-name directory)))
      (goto-char (point-min))
      (while (re-search-forward "\\([^\0]*\\)\0filter\\.\\([^\0]*\\)\\.[^.\0]+\0" nil t)
        (when (string-match-p scopes (match-string 1))
          (cl-pushnew (match-string 2) filters :test #'equal))))
    (append
     qwen-companion-programs--git-settings
     (cl-loop for name in filters
              ;; Git would end the name of the option at the first equals sign.
              when (string-search "=" name)
              do (user-error "A filter in git's settings for %s has an equals sign in its name"
                             (abbreviate-file-name directory))
              nconc (cl-loop for (key . value) in '(("clean" . "") ("smudge" . "") ("process" . "")
                                                    ("required" . "false"))
                             collect (cons (format "filter.%s.%s" name key) value))))))

(defun qwen-companion-programs--work-tree (directory)
  "Return options that make the files around DIRECTORY the work tree of git.
Otherwise settings of the repository could name another one."
  (let ((top (locate-dominating-file directory ".git")))
    (when (and top
               (file-directory-p (expand-file-name ".git" top))
               (not (string-match-p "/\\.git\\(?:/\\|\\'\\)" directory)))
      (list "--work-tree" (directory-file-name top)))))

(defun qwen-companion-programs-git (directory &rest arguments)
  "Return a command for git with ARGUMENTS in DIRECTORY.
Git runs nothing of the repository, but filters of the user's own settings:
files are checked out as by the user's git.
Signal `file-missing' without git, and a `user-error' when its settings
cannot be read."
  (let* ((directory (expand-file-name directory))
         (git (qwen-companion-programs--needed "git")))
    `("env" ,@qwen-companion-programs--git-variables ,git "--no-pager" "-C" ,directory
      ,@(cl-loop for (name . value) in (qwen-companion-programs--git-options
                                        git directory "\\`\\(?:local\\|worktree\\)\\'")
                 nconc (list "-c" (concat name "=" value)))
      ,@(qwen-companion-programs--work-tree directory)
      ,@arguments)))

(defun qwen-companion-programs-call-with-git (directory function &rest arguments)
  "Call FUNCTION with ARGUMENTS; let it run git in DIRECTORY, isolated.
Git runs no other program and no filter.  Set no variables by directory:
project.el would set even unsafe ones."
  (let ((enable-dir-local-variables nil))
    (if-let* (((not (file-remote-p directory)))
              (git (qwen-companion-programs-find "git")))
        (let* ((settings (cl-loop for (name . value) in (qwen-companion-programs--git-options
                                                         git (expand-file-name directory) "")
                                  collect (format "'%s=%s'" (string-replace "'" "'\\''" name) value)))
               (process-environment
                (append (list (concat "GIT_CONFIG_PARAMETERS=" (string-join settings " ")))
                        qwen-companion-programs--git-variables
                        (qwen-companion-programs--environment)))
               (exec-path (list (file-name-directory git))))
          (apply function arguments))
      (apply function arguments))))

(provide 'qwen-companion-programs)
;;; qwen-companion-programs.el ends here
