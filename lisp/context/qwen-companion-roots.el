;;; qwen-companion-roots.el --- Which projects are open  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A CLI connects if it runs in a workspace root or below one.  The roots are
;; the projects of open files, Dired buffers and terminals.  They are computed
;; a few at a time, since project.el may take long, and sent to the Python
;; process, which publishes them.

;;; Code:

(require 'cl-lib)
(require 'project)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-roots-outside-projects t
  "Whether directories outside any project count as workspace roots.
A CLI connects only if it runs in a workspace root or below one.  If
non-nil, the directory of each open file and terminal that belongs to no
project is a root; if nil, only projects are."
  :group 'qwen-companion
  :type 'boolean)

(defvar qwen-companion-roots-terminal-modes '(comint-mode eshell-mode)
  "Modes of buffers in which a CLI may run; those of terminals are added.")

(defconst qwen-companion-roots--slice 0.004
  "Seconds of computing roots without a pause.")

(defconst qwen-companion-roots--age 60
  "Seconds after which a root is computed again.
A directory may have become a project, or may no longer be one.")

(defvar qwen-companion-roots--table (make-hash-table :test #'equal)
  "Cache of roots: directory to (ROOT-OR-NIL . TIME).
In addition (ROOT) to (DIRECTORY-OR-NIL . TIME), the directory of
worktrees beside ROOT.")
(defvar qwen-companion-roots-directories-functions nil
  "Abnormal hook run with the directories of open buffers, remote ones too.")
(defvar qwen-companion-roots--timer nil
  "Timer that continues looking up roots, nil when all are known.")
(defvar qwen-companion-roots--extra nil
  "Directories in which a CLI was started by command.")
(defvar qwen-companion-roots--sent nil
  "The `roots' payload sent last, nil before the first one.")
(defvar qwen-companion-roots--answer nil
  "The last `published' message: the contents of the discovery files.")

(defun qwen-companion-roots-of (directory)
  "Return the project root of DIRECTORY as an absolute name, or nil.
The name has no final slash.  A remote directory has a root only at a place
that is served, whose relay computes it."
  (if (qwen-companion-places-remote-p directory)
      (qwen-companion-places-root directory)
    (qwen-companion-roots--remember directory #'qwen-companion-roots--look-up directory)))

(defun qwen-companion-roots--remember (key function argument)
  "Return the value of FUNCTION with ARGUMENT, cached under KEY."
  (car (or (qwen-companion-roots--known key)
           (puthash key (cons (funcall function argument) (float-time))
                    qwen-companion-roots--table))))

(defvar project-current-directory-override)

(defun qwen-companion-roots-here ()
  "Return the root of the current project, or the current directory.
While `project-switch-project' runs, return the project chosen there."
  (let ((directory (or (bound-and-true-p project-current-directory-override)
                       default-directory)))
    (or (qwen-companion-roots-of directory) directory)))

(defun qwen-companion-roots-project (directory)
  "Return the project of DIRECTORY according to project.el, or nil.
Before Emacs 30 that would run the code in a .dir-locals.el unasked."
  (let ((enable-dir-local-variables nil))
    (ignore-errors (project-current nil directory))))

(defun qwen-companion-roots--look-up (directory)
  "Ask project.el for the root of DIRECTORY; see `qwen-companion-roots-of'."
  (when-let* ((project (qwen-companion-roots-project directory)))
    (directory-file-name (expand-file-name (project-root project)))))

(defun qwen-companion-roots--known (key)
  "Return the table entry of KEY, nil if it is missing or out of date."
  (when-let* ((known (gethash key qwen-companion-roots--table)))
    ;; Negative if the clock was set back.
    (when (<= 0 (- (float-time) (cdr known)) qwen-companion-roots--age)
      known)))

(defun qwen-companion-roots--or-directory (directory)
  "Return the root for the local DIRECTORY, or nil."
  (when-let* (((not (qwen-companion-places-remote-p directory)))
              (root (or (qwen-companion-roots-of directory)
                        (and qwen-companion-roots-outside-projects
                             (directory-file-name
                              (expand-file-name directory))))))
    (if (qwen-companion-backend-unicode-p root)
        root
      (qwen-companion-backend-notice-once
       (format "%s is left out: its name is not valid in the file-name encoding"
               root)))))

(defun qwen-companion-roots--of-worktrees (root)
  "Return the directory for worktrees of CLIs in ROOT, nil if it is below that.
It may not exist yet."
  (when-let* ((top (locate-dominating-file root ".git"))
              ((not (equal (file-name-as-directory root) (expand-file-name top))))
              ;; In a worktree and a submodule it is a file.
              ((file-directory-p (expand-file-name ".git" top))))
    (expand-file-name ".qwen/worktrees" top)))

(defun qwen-companion-roots--directories ()
  "Return the directories whose projects are open."
  (let (directories)
    (dolist (buffer (buffer-list))
      (with-current-buffer buffer
        (when (or buffer-file-name
                  (eq major-mode 'dired-mode)
                  (apply #'derived-mode-p qwen-companion-roots-terminal-modes))
          (cl-pushnew default-directory directories :test #'equal))))
    directories))

(defun qwen-companion-roots-update ()
  "Send the open roots if they have changed.
Computing a root can take long, so that is done in slices; the roots are
sent when all are known."
  (qwen-companion-timers-cancel qwen-companion-roots--timer)
  (let ((end (+ (float-time) qwen-companion-roots--slice))
        (directories (qwen-companion-roots--directories))
        (roots (copy-sequence qwen-companion-roots--extra)))
    (qwen-companion-buffers-locally
      (while (and directories
                  (or (< (float-time) end)
                      (qwen-companion-roots--known (car directories))))
        (when-let* ((root (qwen-companion-roots--or-directory
                           (pop directories))))
          (cl-pushnew root roots :test #'equal)
          (when-let* ((beside (qwen-companion-roots--remember
                               (list root) #'qwen-companion-roots--of-worktrees root)))
            (cl-pushnew beside roots :test #'equal))))
      (if directories
          (qwen-companion-roots-update-soon)
        (qwen-companion-roots--send roots)
        (run-hook-with-args 'qwen-companion-roots-directories-functions
                            (qwen-companion-roots--directories))))))

(defun qwen-companion-roots-update-soon ()
  "Update the roots as `qwen-companion-roots-update' does, from a timer.
Looking up the first directory loads vc, which takes longer than all
the rest of turning on the mode."
  (unless qwen-companion-roots--timer
    (setq qwen-companion-roots--timer
          (run-at-time 0.001 nil #'qwen-companion-roots-update))))

(defun qwen-companion-roots--in-use (roots)
  "Return the roots sent before that connected CLIs still need beside ROOTS.
So a CLI keeps its project, and can reconnect, after the last file of the
project is closed."
  (cl-loop for session in (qwen-companion-backend-sessions)
           for directory = (qwen-companion-session-directory session)
           when directory
           ;; Not `nconc': the rest of the list may be the list itself.
           append (cl-flet ((holds-p (root)
                              (qwen-companion-untrusted-in-directory-p directory root)))
                    (unless (cl-some #'holds-p roots)
                      (cl-remove-if-not
                       #'holds-p
                       (plist-get qwen-companion-roots--sent :roots))))))

(defun qwen-companion-roots--send (roots)
  "Send ROOTS and those still in use if they have changed."
  (let ((payload (list :roots (sort (delete-dups
                                     (append roots (qwen-companion-roots--in-use roots) nil))
                                    #'string<))))
    (setq qwen-companion-roots--sent
          (qwen-companion-backend-call-if-changed
           'roots payload qwen-companion-roots--sent))))

(defun qwen-companion-roots-add (directory)
  "Count DIRECTORY, an absolute name without final slash, among the roots."
  (unless (member directory (plist-get qwen-companion-roots--sent :roots))
    (cl-pushnew directory qwen-companion-roots--extra :test #'equal)
    (qwen-companion-roots-update)))

(defun qwen-companion-roots-drop (directory)
  "Remove DIRECTORY, which no longer exists, from the roots."
  (setq qwen-companion-roots--extra (delete directory qwen-companion-roots--extra))
  (qwen-companion-roots-update))

(defun qwen-companion-roots-on-published (payload)
  "Handle the `published' message PAYLOAD: store the roots on disk.
Show a message the first time that no CLI can connect without a root."
  (let ((said qwen-companion-roots--answer))
    (setq qwen-companion-roots--answer payload)
    (unless (eq (qwen-companion-published-reachable said)
                (qwen-companion-published-reachable payload))
      ;; The mode line shows this, and nothing else may redraw it.
      (force-mode-line-update t))
    (when-let* ((reason (and (not said) (qwen-companion-roots-unreachable))))
      (qwen-companion-backend-notice reason))))

(defun qwen-companion-roots-unreachable ()
  "Return the reason why no CLI can connect, a string, or nil if one can."
  (and qwen-companion-roots--answer
       (not (qwen-companion-published-reachable qwen-companion-roots--answer))
       (null (qwen-companion-places))
       (format "no CLI can connect: no %s is open; visit one, or start the CLI with M-x qwen-companion-run"
               (if qwen-companion-roots-outside-projects
                   "file, Dired buffer or terminal"
                 "project"))))

(defun qwen-companion-roots-published ()
  "Return the roots that the discovery files on disk name."
  (qwen-companion-published-roots qwen-companion-roots--answer))

(defun qwen-companion-roots-published-p (root)
  "Return non-nil when the discovery files on disk name ROOT."
  (member root (qwen-companion-roots-published)))

(defun qwen-companion-roots-resend ()
  "Send the roots to a new Python process."
  (setq qwen-companion-roots--sent nil)
  (qwen-companion-roots-update))

(defun qwen-companion-roots-forget ()
  "Stop looking up roots, and forget them."
  (qwen-companion-timers-cancel qwen-companion-roots--timer)
  (clrhash qwen-companion-roots--table)
  (setq qwen-companion-roots--extra nil
        qwen-companion-roots--sent nil
        qwen-companion-roots--answer nil))

(provide 'qwen-companion-roots)
;;; qwen-companion-roots.el ends here
