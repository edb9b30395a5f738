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

;;; Hidden characters

(defconst qwen-companion-untrusted--hidden
  (eval-when-compile
    (let (ranges)
      (map-char-table (lambda (range category)
                        (when (eq 'Cf category)
                          (push (if (consp range)
                                    (format "%c-%c" (car range) (cdr range))
                                  (string range))
                                ranges)))
                      (unicode-property-table-internal 'general-category))
      (concat (apply #'concat ranges)
              ;; What else has the property Default_Ignorable_Code_Point, for
              ;; which Emacs has no table.
              "\u034F\u115F\u1160\u17B4\u17B5\u180B-\u180F\u2065\u3164\uFE00-\uFE0F\uFFA0\uFFF0-\uFFF8\U000E0000-\U000E0FFF"
              ;; Line ends that no program shows, and the blank of Braille.
              "\u2028\u2029\u2800")))
  "Characters that are not seen, or that reorder others, as in a character set.
They are those of the general category Cf, and those that a display may
ignore.  Control characters are not among them: buffers show those.")

(defconst qwen-companion-untrusted--seen
  (concat "^" qwen-companion-untrusted--hidden)
  "All other characters, as an argument of `skip-chars-forward'.")

(defconst qwen-companion-untrusted--needed
  (let ((letter "[\u0620-\u0DFF\u0F00-\u109F\u1780-\u18AF\u1A20-\u1BFF\uA840-\uA8FF\uA980-\uA9FF\uFB50-\uFDFF\uFE70-\uFEFC\U00011000-\U000114DF]")
        (unspaced "[\u0E00-\u109F\u1780-\u17FF]")
        (emoji "[©®‼⁉\u2122-\u27BF\u2900-\u2BFF\u3030\u303D\u3297\u3299\U0001F000-\U0001FAFF]"))
    (concat letter "[\u200C\u200D]" letter
            "\\|" unspaced "\u200B" unspaced
            "\\|[\u1820-\u18AA][\u180B-\u180F]"
            "\\|[\u3400-\u9FFF\uF900-\uFAFF\U00020000-\U0003FFFF][\uFE00-\uFE0D\U000E0100-\U000E01EF]"
            "\\|" emoji "[\uFE0E\uFE0F]\\|[#*0-9]\uFE0F\u20E3"
            "\\|\\(?:" emoji "\\|\uFE0F\\)\u200D" emoji
            ;; The flags of England, Scotland and Wales.
            "\\|\U0001F3F4\U000E0067\U000E0062\\(?:\U000E0065\U000E006E\U000E0067\\|\U000E0073\U000E0063\U000E0074\\|\U000E0077\U000E006C\U000E0073\\)\U000E007F"))
  "Matches a hidden character with its neighbours where a text needs it.
That is between letters of scripts that have joiners, like the Arabic and
those of India, or no spaces; in variants of letters; and in emoji.")

(defun qwen-companion-untrusted-next-hidden (&optional limit)
  "Move behind the next hidden character before LIMIT, and return it, or nil.
Skip those that the text needs, as between letters of Persian."
  (let (hidden)
    (while (and (not hidden)
                (progn (skip-chars-forward qwen-companion-untrusted--seen limit)
                       (< (point) (or limit (point-max)))))
      (forward-char)
      (unless (qwen-companion-untrusted--needed-p)
        (setq hidden (char-before))))
    hidden))

(defun qwen-companion-untrusted--needed-p ()
  "Return non-nil when the text needs the hidden character before point.
Move to the end of a flag of which it is the first one."
  (let ((end (point)))
    (goto-char (max (point-min) (- end 2)))
    (when (prog1 (looking-at-p qwen-companion-untrusted--needed)
            (goto-char end))
      (when (eq ?\U000E0067 (char-before))
        (forward-char 5))
      t)))

;;; In one line

(defconst qwen-companion-untrusted--unseen
  (concat "[\u0000-\u001F\u007F-\u009F" qwen-companion-untrusted--hidden "]")
  "Matches invisible characters and those that reorder the text around them.")

(defun qwen-companion-untrusted-text (text &optional lines)
  "Return TEXT without properties, with invisible characters written out.
Those that the text needs stay, see `qwen-companion-untrusted-next-hidden'.
With LINES non-nil, keep line ends and tabs as they are."
  (let ((text (substring-no-properties text)))
    (if (not (string-match-p qwen-companion-untrusted--unseen text))
        text
      (with-temp-buffer
        (save-excursion (insert text))
        (save-match-data
          (while (re-search-forward qwen-companion-untrusted--unseen nil t)
            (let ((character (char-before)))
              (unless (or (and lines (memq character '(?\n ?\t)))
                          (qwen-companion-untrusted--needed-p))
                (delete-char -1)
                (insert (propertize (cond ((eq character ?\n) "\\n")
                                          ((> character #xFFFF) (format "\\U%08X" character))
                                          (t (format "\\u%04X" character)))
                                    'face 'escape-glyph))))))
        (buffer-string)))))

(defun qwen-companion-untrusted-line (text)
  "Return TEXT like `qwen-companion-untrusted-text', with its lines as one."
  (qwen-companion-untrusted-text
   (mapconcat #'identity (split-string text "[ \n\t]+" t) " ")))

(defconst qwen-companion-untrusted--cut 1000
  "Characters of a text that are shown in the echo area or as a prompt.
Of 400,000 there, Emacs took no key for 3 seconds.")

(defun qwen-companion-untrusted-cut (text)
  "Return TEXT, or its beginning if it is too long for the echo area."
  (if (> (length text) qwen-companion-untrusted--cut)
      (concat (substring text 0 qwen-companion-untrusted--cut) "…")
    text))

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
    (qwen-companion-untrusted-show-hidden)))

(defun qwen-companion-untrusted-major-mode (path)
  "Return the major mode that the name PATH alone chooses, or nil.
Only modes for text and programs: others act on the text they get."
  (let* ((case-fold-search nil)
         (mode (assoc-default (file-name-sans-versions path) auto-mode-alist
                              #'string-match-p))
         (mode (and (symbolp mode)
                    ;; New in Emacs 30; 29 has the alist of the user alone.
                    (if (fboundp 'major-mode-remap)
                        (major-mode-remap mode)
                      (alist-get mode (bound-and-true-p major-mode-remap-alist) mode)))))
    (when (and mode (fboundp mode))
      (ignore-errors (autoload-do-load (symbol-function mode) mode))
      (and (cl-some (lambda (parent) (provided-mode-derived-p mode parent))
                    '(prog-mode text-mode conf-mode))
           mode))))

(defconst qwen-companion-untrusted--shown-limit 1000
  "How many hidden characters of a text are displayed by overlays.
A text with more of them is suspicious enough as it is.")

(defun qwen-companion-untrusted-ascii-p ()
  "Return non-nil when the whole current buffer is ASCII.
The time does not depend on the size."
  (= (buffer-size) (1- (position-bytes (1+ (buffer-size))))))

(defun qwen-companion-untrusted-show-hidden (&optional start end)
  "Show hidden characters from START to END as their codes; they reorder nothing.
Without these, do so in the whole buffer.  Otherwise a text could look
like another one.  Call this again when the text has changed."
  ;; For each of many brackets in a line, Emacs would look for its partner.
  (setq-local bidi-inhibit-bpa t)
  (unless (qwen-companion-untrusted-ascii-p)
    (remove-overlays start end 'qwen-companion-untrusted t)
    (save-excursion
      (goto-char (or start (point-min)))
      (cl-loop repeat qwen-companion-untrusted--shown-limit
               for hidden = (qwen-companion-untrusted-next-hidden end)
               while hidden
               do (unless (local-variable-p 'glyphless-char-display)
                    (setq-local glyphless-char-display (copy-sequence glyphless-char-display)))
               (aset glyphless-char-display hidden 'hex-code)
               (unless start
                 (setq bidi-paragraph-direction 'left-to-right))
               ;; The display treats a replacement for a character as neutral,
               ;; and joins it with no other.
               (let ((overlay (make-overlay (1- (point)) (point) nil t)))
                 (overlay-put overlay 'qwen-companion-untrusted t)
                 (overlay-put overlay 'evaporate t)
                 (overlay-put overlay 'display
                              (propertize (format "%04X" hidden) 'face 'escape-glyph)))))))

(defun qwen-companion-untrusted--hidden-lines (function)
  "Call FUNCTION with each line of this buffer that has hidden characters.
Point is before the first one of the line."
  (unless (qwen-companion-untrusted-ascii-p)
    (qwen-companion-buffers-widened
      (goto-char (point-min))
      (while (qwen-companion-untrusted-next-hidden)
        (backward-char)
        (funcall function (buffer-substring-no-properties (line-beginning-position)
                                                          (line-end-position)))
        (forward-line)))))

(defun qwen-companion-untrusted-hidden-warning (before)
  "Return a warning of hidden characters in the current buffer, or nil.
Lines that are in the buffer BEFORE, too, do not count."
  (let ((known (make-hash-table :test #'equal))
        found)
    (with-current-buffer before
      (qwen-companion-untrusted--hidden-lines (lambda (line) (puthash line t known))))
    (qwen-companion-untrusted--hidden-lines
     (lambda (line)
       (unless (gethash line known)
         (cl-loop for hidden = (qwen-companion-untrusted-next-hidden (line-end-position))
                  while hidden
                  do (unless (assq hidden found)
                       (push (list hidden 0 (line-number-at-pos nil t)) found))
                  (cl-incf (cadr (assq hidden found)))))))
    (when found
      (concat "hidden characters: "
              (mapconcat (pcase-lambda (`(,hidden ,count ,line))
                           (format "U+%04X%s, line %d" hidden
                                   (if (= count 1) "" (format " %d times" count)) line))
                         (reverse (last found 3)) "; ")
              (and (nthcdr 3 found) (format "; and %d others" (- (length found) 3)))))))

(provide 'qwen-companion-untrusted)
;;; qwen-companion-untrusted.el ends here
