;;; hostile.el --- Call all commands in a project with traps  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; For hostile.py, which makes the project and looks at the programs started.
;; Each prompt is answered with yes, its default or its first candidate.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion)
(require 'qwen-companion-programs)

(defconst hostile-unasked
  '((qwen-companion-mode . "turned on and off here")
    (qwen-companion-install-backend . "runs uv or pip, which download packages; the tests of the environment run it")
    (qwen-companion-uninstall . "deletes the environment that runs")
    (qwen-companion-changes-commit . "to commit, filters run, as with git add")
    (qwen-companion-changes-commit--done . "a commit runs hooks and signers, as the user's own")
    (qwen-companion-worktrees-merge-branch . "the shell command is the user's"))
  "Commands that are not called, and why.")

(defconst hostile-limit 5 "Seconds for one command.")

(defvar hostile-directory nil "Where the project, the traps that went off and the results are.")
(defvar hostile-results nil "Lines for the results, newest first.")

(defun hostile-say (format &rest arguments)
  "Add a line to the results, FORMAT with ARGUMENTS."
  (push (apply #'format-message format arguments) hostile-results)
  (write-region (string-join (reverse hostile-results) "\n") nil
                (expand-file-name "results" hostile-directory) nil 'silent))

(defun hostile-sprung (what)
  "Note the traps that went off in WHAT, and set them anew."
  (dolist (file (directory-files (expand-file-name "markers" hostile-directory) t "[^.]"))
    (hostile-say "TRAP %s: %s" what (file-name-nondirectory file))
    (delete-file file)))

(defun hostile-wait (test seconds)
  "Wait until TEST returns non-nil, at most SECONDS; return that."
  (let ((end (+ (float-time) seconds))
        value)
    (while (not (or (setq value (funcall test)) (> (float-time) end)))
      (accept-process-output nil 0.05))
    value))

(defun hostile-answer (_prompt &optional collection predicate _match initial _history default &rest _)
  "Return DEFAULT, INITIAL, or the first of COLLECTION that meets PREDICATE."
  (or (if (consp default) (car default) default)
      (if (consp initial) (car initial) initial)
      (car (ignore-errors (all-completions "" collection predicate)))
      "x"))

(defun hostile-call (command)
  "Call COMMAND with all prompts answered; return how it ended."
  (let ((here (expand-file-name "project/" hostile-directory))
        (unread-command-events nil)
        (last-command-event ?y)
        (enable-recursive-minibuffers t))
    (cl-letf (((symbol-function 'y-or-n-p) #'always)
              ((symbol-function 'yes-or-no-p) #'always)
              ((symbol-function 'completing-read) #'hostile-answer)
              ((symbol-function 'completing-read-multiple) (lambda (&rest all) (list (apply #'hostile-answer all))))
              ((symbol-function 'read-from-minibuffer) (lambda (&rest _) "x"))
              ((symbol-function 'read-string) (lambda (_ &optional initial &rest _) (or initial "x")))
              ((symbol-function 'read-passwd) (lambda (&rest _) "x"))
              ((symbol-function 'read-number) (lambda (&rest _) 1))
              ((symbol-function 'read-shell-command) (lambda (&rest _) "true"))
              ((symbol-function 'read-file-name) (lambda (&rest _) (expand-file-name "a.txt" here)))
              ((symbol-function 'read-directory-name) (lambda (&rest _) here))
              ((symbol-function 'read-buffer) (lambda (&rest _) (buffer-name)))
              ((symbol-function 'read-multiple-choice) (lambda (_ choices &rest _) (car choices)))
              ((symbol-function 'read-char-choice) (lambda (_ choices &rest _) (car choices)))
              ((symbol-function 'read-char) (lambda (&rest _) ?y))
              ((symbol-function 'read-char-exclusive) (lambda (&rest _) ?y))
              ((symbol-function 'read-key) (lambda (&rest _) ?y))
              ((symbol-function 'read-event) (lambda (&rest _) ?y))
              ((symbol-function 'recursive-edit) #'ignore)
              ((symbol-function 'browse-url) #'ignore))
      (condition-case err
          (with-timeout (hostile-limit "no end")
            (call-interactively command)
            "done")
        ((error quit) (format "%S" err))))))

(defun hostile-contexts (command)
  "Return buffers for COMMAND: one of each mode of ours, and one of a file."
  (let ((file (find-file-noselect (expand-file-name "project/a.txt" hostile-directory)))
        (modes (and (fboundp 'command-modes) (command-modes command)))
        buffers seen)
    (dolist (buffer (buffer-list))
      (with-current-buffer buffer
        (when (and (string-prefix-p "qwen-companion-" (symbol-name major-mode))
                   (not (memq major-mode seen))
                   (or (null modes) (apply #'derived-mode-p modes)))
          (push major-mode seen)
          (push buffer buffers))))
    (if modes buffers (cons file buffers))))

(defun hostile-commands ()
  "Return all commands of the package, sorted."
  (let (commands)
    (mapatoms (lambda (symbol)
                (when (and (string-prefix-p "qwen-companion-" (symbol-name symbol))
                           (commandp symbol)
                           (not (assq symbol hostile-unasked)))
                  (push symbol commands))))
    (sort commands #'string<)))

(defun hostile-show (buffer place)
  "Show BUFFER alone, with point at the part PLACE of it."
  (let ((window (or (seq-find (lambda (window) (not (window-parameter window 'window-side)))
                              (window-list))
                    (selected-window))))
    (select-window window)
    (ignore-errors (delete-other-windows))
    (set-window-dedicated-p nil nil)
    (set-window-buffer nil buffer)
    (set-buffer buffer)
    (goto-char (+ (point-min) (floor (* place (buffer-size)))))))

(defun hostile-call-all ()
  "Call each command wherever it makes sense, and note what went off."
  (dolist (command (hostile-commands))
    (let ((calls 0)
          outcomes)
      (dolist (buffer (hostile-contexts command))
        (when (buffer-live-p buffer)
          (dolist (place '(0 0.3 0.6))
            (when (buffer-live-p buffer)
              (hostile-show buffer place)
              (cl-pushnew (hostile-call command) outcomes :test #'equal)
              (setq calls (1+ calls))
              (accept-process-output nil 0.02)))))
      (hostile-say "%s: %d, %s" command calls (string-join outcomes "; "))
      (hostile-sprung command))))

(defun hostile-main (directory python)
  "Call all commands in the project of DIRECTORY; PYTHON runs the backend."
  (setq hostile-directory (file-name-as-directory directory))
  (condition-case err
      (let ((file (expand-file-name "project/a.txt" directory))
            (enable-local-variables nil)
            (kill-buffer-query-functions nil)
            (confirm-kill-processes nil)
            (ring-bell-function #'ignore))
        ;; What Emacs itself runs where a file is visited is not ours.
        (setq vc-handled-backends nil
              large-file-warning-threshold nil
              async-shell-command-display-buffer nil)
        (find-file file)
        ;; Only now: Emacs itself finds the programs by it that decompress its own files.
        (setq exec-path (append '("node_modules/.bin" ".") exec-path))
        (setenv "PATH" (concat "node_modules/.bin:.::" (getenv "PATH")))
        (setenv "PYTHONPATH" ".")
        (hostile-sprung "visiting a file")
        (cl-letf (((symbol-function 'y-or-n-p) #'ignore))
          (qwen-companion-mode 1))
        (hostile-wait (lambda () (memq (qwen-companion-state) '(error off))) 20)
        (hostile-sprung "the first start")
        (qwen-companion-mode -1)
        (dolist (library (file-expand-wildcards
                          (expand-file-name "../*/qwen-companion-*.el" (file-name-directory (locate-library "qwen-companion-programs")))))
          (unless (string-match-p "/extensions/\\|loaddefs" library)
            (require (intern (file-name-base library)))))
        (setq qwen-companion-python python
              qwen-companion-daemon-enabled t
              qwen-companion-terminal 'term
              qwen-companion-qwen-command (list (expand-file-name "bin/cli" directory)))
        (qwen-companion-mode 1)
        (unless (hostile-wait (lambda () (eq 'ready (qwen-companion-state))) 60)
          (error "Not ready: %S" (qwen-companion-state)))
        (hostile-sprung "the start")
        ;; Views first, whose buffers the other commands need; twice, since some need what others have opened.
        (dotimes (_ 2)
          (dolist (view '(qwen-companion-changes qwen-companion-blame-mode qwen-companion-worktrees
                          qwen-companion-sessions qwen-companion-run))
            (find-file file)
            (when (commandp view)
              (hostile-say "%s: %s" view (hostile-call view))
              (hostile-wait #'ignore 2)
              (hostile-sprung view))))
        (hostile-call-all)
        (hostile-wait #'ignore 3)
        (hostile-sprung "the end of all")
        (qwen-companion-mode -1)
        (hostile-wait #'ignore 1)
        (hostile-sprung "the end of the mode")
        (hostile-say "END"))
    (error (hostile-say "BROKEN %S" err)))
  (kill-emacs 0))

(provide 'hostile)
;;; hostile.el ends here
