;;; qwen-companion-untrusted.el --- Display untrusted text safely  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Titles, names of files, commands and whole texts come from models, CLIs
;; and daemons, and may be made to look like something else.  In a line of
;; ours, invisible characters and those that reorder others are written out.
;; A buffer with such a text gets a major mode, and no hook, local variable
;; or minor mode.  A file that they name must be where it may be.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-buffers)
(require 'qwen-companion-places)

;;; How long it may take

(defmacro qwen-companion-untrusted-until-input (&rest body)
  "Evaluate BODY until the user types; return its value, or t when they did.
Like `while-no-input', but lose no key.  A text terminal delivers many
characters at once; while Emacs stores them, it looks up each one in
`while-no-input-ignore-events', may be interrupted there, and forgets the
rest: the end of a paste, the last character of an arrow key."
  (declare (indent 0) (debug t))
  ;; Nothing interrupts a search in an empty list.
  `(let ((while-no-input-ignore-events nil))
     (while-no-input ,@body)))

;;; Where a file is

(defun qwen-companion-untrusted-in-directory-p (file directory)
  "Return non-nil when FILE is DIRECTORY or below it, by their true names.
Return nil when DIRECTORY is not there.  `file-in-directory-p' also
compares the times of DIRECTORY with themselves, and says no when another
program has just written there.  Of remote names, which TRAMP would have to
look for, only the names count."
  (let ((file (qwen-companion-places-name file)))
    (cond ((or (file-remote-p file) (file-remote-p directory))
           (string-prefix-p (file-name-as-directory directory) (file-name-as-directory file)))
          ((file-directory-p directory)
           (string-prefix-p (file-name-as-directory (file-truename directory))
                            (file-name-as-directory (file-truename file)))))))

;;; In one line

(defconst qwen-companion-untrusted--unseen
  "[\u0000-\u001F\u007F-\u009F\u00AD\u061C\u200B-\u200F\u2028-\u202E\u2060-\u206F\uFEFF]"
  "Matches invisible characters and those that reorder the text around them.")

(defun qwen-companion-untrusted-text (text &optional lines)
  "Return TEXT without properties, with invisible characters written out.
With LINES non-nil, keep line ends and tabs as they are."
  (let ((text (substring-no-properties text)))
    (if (not (string-match-p qwen-companion-untrusted--unseen text))
        text
      (replace-regexp-in-string
       qwen-companion-untrusted--unseen
       (lambda (unseen)
         (pcase (aref unseen 0)
           ((and (or ?\n ?\t) (guard lines)) unseen)
           (?\n (propertize "\\n" 'face 'escape-glyph))
           (character (propertize (format "\\u%04X" character)
                                  'face 'escape-glyph))))
       text t t))))

(defun qwen-companion-untrusted-line (text)
  "Return TEXT like `qwen-companion-untrusted-text', with its lines as one."
  (qwen-companion-untrusted-text
   (mapconcat #'identity (split-string text "[ \n\t]+" t) " ")))

(defun qwen-companion-untrusted-path (path)
  "Return PATH abbreviated, with invisible characters written out.
Of a copy here of a file elsewhere, return the name of that file."
  (qwen-companion-untrusted-text (qwen-companion-places-abbreviate path)))

(defun qwen-companion-untrusted-mode-line (text)
  "Return TEXT with its percent signs escaped for the mode line."
  (string-replace "%" "%%" text))

;;; In a buffer

(defconst qwen-companion-untrusted--mode-limit 250000
  "Most characters of a text that is shown with syntax colours.
Some major modes parse the whole text to colour its end: C mode took 0.8
seconds for this many, and time grows with the length.")

(defconst qwen-companion-untrusted--line-limit 5000
  "Characters in a line above which a text goes without syntax colours.
A line is coloured as a whole.")

(defconst qwen-companion-untrusted--hooks
  '(change-major-mode-hook change-major-mode-after-body-hook
    after-change-major-mode-hook before-hack-local-variables-hook
    hack-local-variables-hook c-initialization-hook c-mode-common-hook
    sh-set-shell-hook)
  "Hooks that major modes run, beside those named after modes.
Some run them directly, and delaying does not help: that of HTML the one
of programs, that of diffs the one of local variables.")

(defvar qwen-companion-untrusted--mode-hooks nil
  "Hooks of modes, (LOADED . HOOKS), as of LOADED, the files loaded then.")

(defun qwen-companion-untrusted--mode-hooks ()
  "Return all hooks that major modes may run and that have functions."
  (unless (eq load-history (car qwen-companion-untrusted--mode-hooks))
    (let ((hooks (copy-sequence qwen-companion-untrusted--hooks)))
      (mapatoms (lambda (symbol)
                  (when (string-match-p "-mode\\(?:-on\\)?-hook\\'" (symbol-name symbol))
                    (push symbol hooks))))
      (setq qwen-companion-untrusted--mode-hooks (cons load-history hooks))))
  (cl-remove-if-not (lambda (hook) (and (boundp hook) (symbol-value hook)))
                    (cdr qwen-companion-untrusted--mode-hooks)))

(defun qwen-companion-untrusted-without-hooks (function)
  "Call FUNCTION to start a mode in the current buffer, and run no hook.
Keep what a file that FUNCTION loads has added to a hook."
  (let ((hooks (qwen-companion-untrusted--mode-hooks))
        (enable-local-variables nil)
        ;; What a mode says at its start is not about a file of the user's.
        (inhibit-message t)
        (message-log-max nil)
        added)
    (cl-progv hooks (mapcar #'ignore hooks)
      (delay-mode-hooks (funcall function))
      (kill-local-variable 'delayed-mode-hooks)
      (setq added (mapcar #'default-value hooks)))
    (cl-loop for hook in hooks
             for functions in added
             do (dolist (function (ensure-list functions))
                  (add-hook hook function)))))

(defvar org-src-fontify-natively)

(defun qwen-companion-untrusted-set-major-mode (path)
  "Turn on the major mode for PATH, without hooks or local variables.
No mode hook runs, no global minor mode gets at the buffer and no local
variable is read.  The text is removed meanwhile: a mode that reads it
at its start may take seconds, and the text could direct it."
  (let ((mode (and (< (buffer-size) qwen-companion-untrusted--mode-limit)
                   (save-excursion
                     (goto-char (point-min))
                     (not (re-search-forward
                           (format "^.\\{%d\\}" qwen-companion-untrusted--line-limit) nil t)))
                   (qwen-companion-untrusted-major-mode path))))
    (when mode
      (let ((undo buffer-undo-list)
            (point (point))
            (text (progn (buffer-disable-undo)
                         (delete-and-extract-region (point-min) (point-max)))))
        (qwen-companion-untrusted-without-hooks
         (lambda ()
           (condition-case nil
               (funcall mode)
             (error (fundamental-mode)))
           ;; It would start the modes of languages in the text, with hooks.
           (setq-local org-src-fontify-natively nil)
           (font-lock-mode 1)))
        (insert text)
        (goto-char point)
        (setq buffer-undo-list undo)))
    (qwen-companion-untrusted-show-bidi-controls)))

(defun qwen-companion-untrusted-major-mode (path)
  "Return the major mode that the name PATH alone chooses, or nil.
Only modes for text and programs: others act on the text they get."
  (let* ((case-fold-search nil)
         (mode (assoc-default (file-name-sans-versions path) auto-mode-alist
                              #'string-match-p))
         (mode (and (symbolp mode)
                    (alist-get mode (bound-and-true-p major-mode-remap-alist)
                               mode))))
    (when (and mode (fboundp mode))
      (ignore-errors (autoload-do-load (symbol-function mode) mode))
      (and (cl-some (lambda (parent) (provided-mode-derived-p mode parent))
                    '(prog-mode text-mode conf-mode))
           mode))))

(defconst qwen-companion-untrusted--bidi-controls
  '(#x61c #x200e #x200f (#x202a . #x202e) (#x2066 . #x2069))
  "Characters that change the order of the characters around them.")

(defconst qwen-companion-untrusted--bidi-limit 1000
  "How many of these in a text are displayed by overlays.
A text with more of them is suspicious enough as it is.")

(defun qwen-companion-untrusted-ascii-p ()
  "Return non-nil when the whole current buffer is ASCII.
The time does not depend on the size."
  (= (buffer-size) (1- (position-bytes (1+ (buffer-size))))))

(defun qwen-companion-untrusted-bidi-control ()
  "Return the first character of the current buffer that reorders others, or nil."
  (qwen-companion-buffers-widened
    (unless (qwen-companion-untrusted-ascii-p)
      (goto-char (point-min))
      (skip-chars-forward "^\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069")
      (char-after))))

(defun qwen-companion-untrusted-show-bidi-controls ()
  "Show characters that reorder the text as their codes, and reorder nothing.
Otherwise a text could look like another one.  Call this again when the
text has changed."
  ;; For each of many brackets in a line, Emacs would look for its partner.
  (setq-local bidi-inhibit-bpa t)
  (when (qwen-companion-untrusted-bidi-control)
    (setq bidi-paragraph-direction 'left-to-right)
    (setq-local glyphless-char-display (copy-sequence glyphless-char-display))
    (dolist (range qwen-companion-untrusted--bidi-controls)
      (set-char-table-range glyphless-char-display range 'hex-code))
    ;; The display treats a replacement for a character as neutral.
    (remove-overlays nil nil 'qwen-companion-untrusted t)
    (save-excursion
      (goto-char (point-min))
      (cl-loop repeat qwen-companion-untrusted--bidi-limit
               while (re-search-forward
                      "[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]" nil t)
               do (let ((overlay (make-overlay (1- (point)) (point) nil t)))
                    (overlay-put overlay 'qwen-companion-untrusted t)
                    (overlay-put overlay 'evaporate t)
                    (overlay-put overlay 'display
                                 (propertize (format "%04X" (char-before))
                                             'face 'escape-glyph)))))))

(provide 'qwen-companion-untrusted)
;;; qwen-companion-untrusted.el ends here
