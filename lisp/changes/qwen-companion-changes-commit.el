;;; qwen-companion-changes-commit.el --- A turn as a commit or a patch  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The hunk, region, file or turn at point in the buffer of changes is staged
;; without other changes of the files, and a commit buffer opens: Magit's if
;; that is loaded, else one of log-edit.  Or it becomes a patch.  The Python
;; process does both with git.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-changes-file)
(require 'qwen-companion-changes-items)
(require 'qwen-companion-changes-undo)
(require 'qwen-companion-header)
(require 'qwen-companion-hunks)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-programs)
(require 'qwen-companion-spool)
(require 'qwen-companion-untrusted)

;; Loaded when a commit is written.
(declare-function log-edit "log-edit" (callback &optional setup params buffer mode &rest _))
(declare-function log-edit-extract-headers "log-edit" (headers string))
(declare-function log-edit-files "log-edit" ())
(declare-function magit-commit-create "ext:magit-commit" (&optional args))
(declare-function vc-git-command "vc-git" (buffer okstatus file-or-list &rest flags))
(declare-function vc-refresh-state "vc-hooks" ())

(defcustom qwen-companion-changes-commit-trailer nil
  "Name of the trailer with the session in the message of a commit, or nil.
With \"Qwen-Session\" the message of
\\<qwen-companion-changes-mode-map>\\[qwen-companion-changes-commit] ends in the line
\"Qwen-Session: ID\"."
  :group 'qwen-companion
  :type '(choice (const :tag "None" nil) string))

(defconst qwen-companion-changes-commit--buffer-name "*qwen-companion commit*")

(defconst qwen-companion-changes-commit--patience 60
  "Seconds that a command waits for git; it can be quit.")

;;; The choice

(defun qwen-companion-changes-commit--chosen ()
  "Return each change at point or in the region, (GROUP . FILES).
FILES are as in a request.  Leave out undone changes; signal a
`user-error' if none is left."
  (let (group files)
    (qwen-companion-changes-undo-call-on-views
     (lambda (its views changes)
       (setq group its
             files (mapcar (lambda (view) (qwen-companion-changes-commit--part view changes))
                           views))))
    (cons group (or (delq nil files)
                    (qwen-companion-header-error
                     "Everything here is undone; \\[qwen-companion-changes-bring-back] brings it back")))))

(defun qwen-companion-changes-commit--part (view changes)
  "Return the part of VIEW that is not undone, as in a request.
With CHANGES, consider only these.  Return nil if all is undone."
  (let* ((ready (eq 'ready (qwen-companion-changes-file-state view)))
         (all (and ready (qwen-companion-changes-file-changes view)))
         (left-out (lambda (change)
                     (or (qwen-companion-hunks-change-text change)
                         (and changes (not (memq change changes))))))
         (count (cl-count-if left-out all)))
    (unless (and all (= count (length all)))
      (append (list :path (qwen-companion-changes-file-path view)
                    :previous (qwen-companion-changes-file-from view))
              (when (> count 0)
                (qwen-companion-spool-pack
                 (base64-encode-string
                  (or (qwen-companion-changes-file-bytes view left-out) "") t)))))))

(defun qwen-companion-changes-commit--ask (group files action)
  "Ask the journal to do ACTION with FILES of GROUP, and return the answer."
  (qwen-companion-journal-await
   'journal-stage
   (append (qwen-companion-changes-items-group-part group) (list :files files :action action))
   qwen-companion-changes-commit--patience))

;;; Patches

(defun qwen-companion-changes-commit--patch ()
  "Return a patch of each change at point or in the region, as bytes."
  (pcase-let ((`(,group . ,files) (qwen-companion-changes-commit--chosen)))
    (or (nth 2 (car (qwen-companion-journal-read-texts
                     (qwen-companion-changes-commit--ask group files 'patch))))
        (user-error "Nothing to make a patch of"))))

;;;###autoload (autoload 'qwen-companion-changes-copy-patch "qwen-companion-changes" nil t)
(defun qwen-companion-changes-copy-patch ()
  "Copy the hunk, region, file or turn at point as a patch for `git apply'.
Undone changes are left out."
  (interactive)
  (qwen-companion-changes-items-on-change
    (let ((patch (decode-coding-string (qwen-companion-changes-commit--patch) 'utf-8-unix)))
      (kill-new patch)
      (message "Copied a patch of %d lines" (cl-count ?\n patch)))))

(defun qwen-companion-changes-write-patch (file)
  "Write the hunk, region, file or turn at point as a patch into FILE.
It is for `git apply', byte for byte; undone changes are left out."
  (interactive
   (progn
     (qwen-companion-buffers-require-mode 'qwen-companion-changes-mode)
     (list (read-file-name "Write the patch into: " nil nil nil "turn.patch")))
   qwen-companion-changes-mode)
  (let ((patch (qwen-companion-changes-commit--patch))
        (coding-system-for-write 'no-conversion))
    (write-region patch nil file nil nil nil t)))

;;; Commits

(defun qwen-companion-changes-commit ()
  "Stage the hunk, region, file or turn at point, and write a commit message.
Exactly these changes go into the index of git, as they are in the turn.
Your own edits stay unstaged, in the same files too, and no file is
changed.  Undone changes are left out."
  (interactive nil qwen-companion-changes-mode)
  (pcase-let* ((`(,group . ,files) (qwen-companion-changes-commit--chosen))
               (message (qwen-companion-changes-commit--message group files))
               (_ (qwen-companion-changes-commit--check-draft
                   (qwen-companion-changes-items-group-root group)))
               (reply (qwen-companion-changes-commit--ask group files 'stage))
               (others (qwen-companion-journal-reply-others reply)))
    (when others
      (unless (y-or-n-p (format "%d other file%s already staged; commit %s too? "
                                others (if (= others 1) " is" "s are")
                                (if (= others 1) "it" "them")))
        (user-error "Nothing was staged; commit or unstage the others first"))
      (setq reply (qwen-companion-changes-commit--ask group files 'add)))
    (qwen-companion-changes-commit--edit
     (qwen-companion-changes-items-group-root group) message
     (mapcar (lambda (file) (plist-get file :path)) files))
    (let ((count (qwen-companion-journal-reply-staged reply)))
      (message "Staged changes of %d file%s" count (if (= count 1) "" "s")))))

(defun qwen-companion-changes-commit--message (group files)
  "Return the message for a commit of FILES of GROUP."
  (let* ((turn (qwen-companion-journal-turn
                (qwen-companion-changes-undo-turn-of
                 group (mapcar (lambda (file) (plist-get file :path)) files))))
         ;; Git would treat a line that begins so as a comment.
         (subject (string-trim-left
                   (qwen-companion-untrusted-line (or (qwen-companion-turn-prompt turn) ""))
                   "[#[:space:]]+"))
         (session (qwen-companion-turn-session turn)))
    (if (and qwen-companion-changes-commit-trailer (not (member session '(nil ""))))
        (format "%s\n\n%s: %s\n" subject qwen-companion-changes-commit-trailer
                (qwen-companion-untrusted-line session))
      subject)))

(defun qwen-companion-changes-commit--edit (root message files)
  "Let the user edit MESSAGE for a commit of the index of ROOT.
FILES are those with the changes."
  (let ((default-directory (file-name-as-directory root)))
    (if (and (featurep 'magit) (fboundp 'magit-commit-create))
        (magit-commit-create
         (cons "--edit" (and (not (string-empty-p message))
                             (list (concat "--message=" message)))))
      (qwen-companion-changes-commit--log-edit message files))))

(defun qwen-companion-changes-commit--draft ()
  "Return the log buffer with a message begun by the user, or nil."
  (when-let* ((buffer (get-buffer qwen-companion-changes-commit--buffer-name)))
    (and (buffer-modified-p buffer) buffer)))

(defun qwen-companion-changes-commit--check-draft (root)
  "Signal a `user-error' if a message for another directory than ROOT is edited."
  (when-let* ((buffer (qwen-companion-changes-commit--draft))
              (other (buffer-local-value 'default-directory buffer)))
    (unless (equal (file-name-as-directory root) other)
      (user-error "A commit in %s is unfinished; finish it in %s, or kill that buffer"
                  (qwen-companion-untrusted-path other) (buffer-name buffer)))))

(defun qwen-companion-changes-commit--log-edit (message files)
  "Let the user edit MESSAGE in a log buffer of VC.
FILES are those with the changes.  Keep a message begun by the user."
  (require 'log-edit)
  (require 'vc-git)
  (let* ((directory default-directory)
         (draft (qwen-companion-changes-commit--draft))
         (buffer (get-buffer-create qwen-companion-changes-commit--buffer-name))
         (all (append (and draft (with-current-buffer draft
                                   (mapcar #'expand-file-name (log-edit-files))))
                      files))
         (names (delete-dups (mapcar #'file-relative-name all))))
    (with-current-buffer buffer
      (setq default-directory directory))
    (log-edit #'qwen-companion-changes-commit--done nil
              `((log-edit-listfun . ,(lambda () names))
                (log-edit-diff-function . qwen-companion-changes-commit--show-staged))
              buffer 'vc-git-log-edit-mode)
    (unless draft
      (erase-buffer)
      (insert "Summary: " message)
      (goto-char (point-min))
      (end-of-line)
      (set-buffer-modified-p nil))))

(defun qwen-companion-changes-commit--show-staged ()
  "Show the difference of the index from the last commit."
  (interactive)
  (let ((directory default-directory))
    (with-current-buffer (get-buffer-create "*vc-diff*")
      (let ((inhibit-read-only t))
        (erase-buffer)
        (setq default-directory directory)
        (qwen-companion-programs-call-with-git
         directory #'vc-git-command t 0 nil "diff" "--cached" "--no-ext-diff" "--no-textconv")
        (diff-mode)
        (goto-char (point-min))
        (display-buffer (current-buffer))))))

(defun qwen-companion-changes-commit--done ()
  "Commit the index with the message in the current buffer."
  (interactive)
  (pcase-let* ((`(,text . ,arguments)
                (log-edit-extract-headers '(("Author" . "--author") ("Date" . "--date"))
                                          (buffer-string)))
               (file (make-nearby-temp-file "qwen-companion-commit-"))
               (files (log-edit-files))
               (buffer (current-buffer)))
    (unwind-protect
        (progn
          (let ((coding-system-for-write 'utf-8-unix))
            (write-region text nil file nil 'silent))
          (apply #'vc-git-command nil 0 nil "commit" "-F" (file-local-name file) arguments))
      (delete-file file))
    (dolist (name files)
      (when-let* ((visiting (find-buffer-visiting name)))
        (with-current-buffer visiting
          (qwen-companion-programs-call-with-git default-directory #'vc-refresh-state))))
    (quit-windows-on buffer t)
    (when (buffer-live-p buffer)
      (kill-buffer buffer))
    (qwen-companion-journal-committed)
    (message "Committed; your own edits are left out")))

(provide 'qwen-companion-changes-commit)
;;; qwen-companion-changes-commit.el ends here
