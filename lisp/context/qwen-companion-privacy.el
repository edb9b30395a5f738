;;; qwen-companion-privacy.el --- Files hidden from CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Controls which files are reported to CLIs.  The Python process applies the
;; rules, using the disk and git; this file has the options, and the user's
;; choice for a single file.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-backend)
(require 'qwen-companion-options)
(require 'qwen-companion-places)

(defvar auth-sources)

(defcustom qwen-companion-excluded-files nil
  "Patterns of files to hide from CLIs, besides the built-in rules.
Each is a string in the format of .gitignore.  A pattern without a slash
matches a name in any directory.  One that begins with a slash or a tilde
is absolute.  Any other is relative to the home directory.  A directory
includes all files below it.

The following need not be named here: remote files, files of passwords and
keys, files that git ignores, and files named in the CLI's own ignore file
in the project's root."
  :group 'qwen-companion
  :type '(repeat (string :tag "Pattern")))

(defcustom qwen-companion-tell-all-roots nil
  "Whether to report open files outside of a CLI's own root to it.
If nil, a CLI in one project does not learn of open files of another."
  :group 'qwen-companion
  :type 'boolean)

(defcustom qwen-companion-trust nil
  "Whether CLIs are told that their workspace is trusted.
If nil, they are told nothing; if t, that it is.  If it is a list of
directories, roots in one of them are trusted and others are not.  CLIs
ask to be restarted when this changes, so a change applies to CLIs that
connect later."
  :group 'qwen-companion
  :type '(choice (const :tag "Say nothing" nil)
                 (const :tag "All are trusted" t)
                 (repeat :tag "Trusted directories" directory)))

;;; Settings

(defvar qwen-companion-privacy--sent nil
  "The options sent last, nil before the first time.")

(defun qwen-companion-privacy-update ()
  "Send the options to the Python process if they have changed.
Return non-nil then.  This is fast enough to be called often."
  (let ((payload (qwen-companion-privacy--payload)))
    (unless (equal payload qwen-companion-privacy--sent)
      (when (qwen-companion-backend-call 'settings payload)
        ;; Mode lines show some of the options.
        (force-mode-line-update t)
        (setq qwen-companion-privacy--sent payload)))))

(defun qwen-companion-privacy--payload ()
  "Return the options as a payload for the Python process."
  (list :patterns qwen-companion-excluded-files
        :auth-sources (qwen-companion-privacy--auth-files)
        :all-roots qwen-companion-tell-all-roots
        :trusted (eq qwen-companion-trust t)
        :trusted-directories (and (listp qwen-companion-trust)
                                  (mapcar #'expand-file-name
                                          qwen-companion-trust))
        :no-reviews (null qwen-companion-diff-style)
        :settings-layer (and qwen-companion-settings-layer t)
        :review-edits qwen-companion-review-edits
        :questions (and qwen-companion-show-questions qwen-companion-diff-style t)
        :journal (and qwen-companion-journal t)
        :tell-agents (and qwen-companion-tell-agents t)
        :tell-changes (and qwen-companion-tell-changes t)
        :commit-notes (and qwen-companion-commit-notes t)
        :token-limit qwen-companion-token-limit
        :size-limit (default-value 'qwen-companion-diff-size-limit)))

(defun qwen-companion-privacy--auth-files ()
  "Return the files of passwords in `auth-sources'."
  (cl-loop for source in (bound-and-true-p auth-sources)
           for file = (if (consp source) (plist-get source :source) source)
           when (stringp file) collect file))

(defun qwen-companion-privacy-forget ()
  "Make the next update send the options even if they are the same."
  (setq qwen-companion-privacy--sent nil))

;;; One file

(defvar qwen-companion-privacy-changed-hook nil
  "Hook run in a file's buffer after its exposure has changed.")

(defvar-local qwen-companion-exposure nil
  "Whether the file of this buffer is reported to CLIs.
The symbol `hide' or `show' overrides the rules; nil follows them.")
(put 'qwen-companion-exposure 'permanent-local t)
;; A file may ask to be hidden from CLIs, but not to be shown to them.
(put 'qwen-companion-exposure 'safe-local-variable
     (lambda (value) (eq value 'hide)))

(defun qwen-companion-privacy-exposure (buffer)
  "Return the value of `qwen-companion-exposure' in BUFFER."
  (buffer-local-value 'qwen-companion-exposure buffer))

(defun qwen-companion-privacy-set-exposure (buffer exposure)
  "Set `qwen-companion-exposure' in BUFFER to EXPOSURE, with a message."
  (with-current-buffer buffer
    (setq qwen-companion-exposure exposure)
    (run-hooks 'qwen-companion-privacy-changed-hook)
    (message (pcase exposure
               ('hide "%s is hidden from all CLIs")
               ('show "%s is shown to CLIs, whatever the rules say")
               (_ "%s follows the exclusion rules again"))
             (file-name-nondirectory buffer-file-name))))

(defun qwen-companion-privacy-secret-p (buffer)
  "Return non-nil if it is certain that no CLI may see the text of BUFFER."
  (or (eq 'hide (qwen-companion-privacy-exposure buffer))
      (let ((file (buffer-file-name buffer)))
        (and (qwen-companion-places-remote-p file) (not (qwen-companion-places-of file))))))

;;;###autoload
(defun qwen-companion-toggle-exclusion (&optional show)
  "Hide the file of this buffer from all CLIs, or follow the rules again.
With a prefix argument SHOW, show it to CLIs in spite of the rules, or
follow the rules again."
  (interactive "P")
  (let ((buffer (or (buffer-base-buffer) (current-buffer)))
        (wanted (if show 'show 'hide)))
    (unless (buffer-file-name buffer)
      (user-error "Buffer %s is not visiting a file"
                  (buffer-name buffer)))
    (qwen-companion-privacy-set-exposure
     buffer
     (unless (eq wanted (qwen-companion-privacy-exposure buffer)) wanted))))

(provide 'qwen-companion-privacy)
;;; qwen-companion-privacy.el ends here
