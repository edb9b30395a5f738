;;; qwen-companion-untrusted.el --- Display untrusted text safely  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Titles, file names, commands and whole texts come from models, CLIs and
;; daemons, and may be crafted to look like something else.  In single lines,
;; invisible and reordering characters are written out.  A buffer with such a
;; text gets a major mode, but no hooks, local variables or minor modes.  File
;; names are checked to be inside their directory.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-buffers)
(require 'qwen-companion-places)

;;; Interruption

(defmacro qwen-companion-untrusted-until-input (&rest body)
  "Evaluate BODY until the user types; return its value, or t if interrupted.
Like `while-no-input', but without losing keys.  When a text terminal
sends many characters at once, Emacs searches each of them in
`while-no-input-ignore-events'.  If interrupted there, it drops the rest,
such as the end of a paste or of an arrow key's sequence."
  (declare (indent 0) (debug t))
  ;; Nothing interrupts a search in an empty list.
  `(let ((while-no-input-ignore-events nil))
     (while-no-input ,@body)))

;;; Location of files

(defun qwen-companion-untrusted-in-directory-p (file directory)
  "Return non-nil when FILE is DIRECTORY or below it, by their true names.
Return nil when DIRECTORY does not exist.  Unlike `file-in-directory-p',
this does not compare attributes of DIRECTORY, which fails while another
program writes there.  Compare remote names as they are: TRAMP would have
to connect for true names."
  (let ((file (qwen-companion-places-name file)))
    (cond ((or (qwen-companion-places-remote-p file) (qwen-companion-places-remote-p directory))
           (qwen-companion-places-below-p file directory))
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
              ;; Other characters with the property Default_Ignorable_Code_Point,
              ;; for which Emacs has no table.
              "\u034F\u115F\u1160\u17B4\u17B5\u180B-\u180F\u2065\u3164\uFE00-\uFE0F\uFFA0\uFFF0-\uFFF8\U000E0000-\U000E0FFF"
              ;; Line ends that programs do not show, and the Braille blank.
              "\u2028\u2029\u2800")))
  "Invisible and reordering characters, as in a regexp's character set.
These are the general category Cf and characters that a display may ignore,
but not control characters, which buffers show.")

(defconst qwen-companion-untrusted--seen
  (concat "^" qwen-companion-untrusted--hidden)
  "All other characters, for `skip-chars-forward'.")

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
  "Regexp for a legitimate hidden character, with its neighbours.
These occur between letters of scripts with joiners, like Arabic and those
of India, or without spaces; in variants of letters; and in emoji.")

(defun qwen-companion-untrusted-next-hidden (&optional limit)
  "Move behind the next hidden character before LIMIT, and return it, or nil.
Skip legitimate ones, as between letters of Persian."
  (let (hidden)
    (while (and (not hidden)
                (progn (skip-chars-forward qwen-companion-untrusted--seen limit)
                       (< (point) (or limit (point-max)))))
      (forward-char)
      (unless (qwen-companion-untrusted--needed-p)
        (setq hidden (char-before))))
    hidden))

(defun qwen-companion-untrusted--needed-p ()
  "Return non-nil when the hidden character before point is legitimate.
If it is the first one in an emoji flag, move to the end of that."
  (let ((end (point)))
    (goto-char (max (point-min) (- end 2)))
    (when (prog1 (looking-at-p qwen-companion-untrusted--needed)
            (goto-char end))
      (when (eq ?\U000E0067 (char-before))
        (forward-char 5))
      t)))

;;; Single lines

(defconst qwen-companion-untrusted--unseen
  (concat "[\u0000-\u001F\u007F-\u009F" qwen-companion-untrusted--hidden "]")
  "Regexp for invisible and reordering characters.")

(defun qwen-companion-untrusted-text (text &optional lines)
  "Return TEXT without properties, with invisible characters written out.
Keep legitimate ones, see `qwen-companion-untrusted-next-hidden', and with
LINES non-nil line ends and tabs."
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
  "Return TEXT as by `qwen-companion-untrusted-text', joined into one line."
  (qwen-companion-untrusted-text
   (mapconcat #'identity (split-string text "[ \n\t]+" t) " ")))

(defconst qwen-companion-untrusted--cut 1000
  "Limit in characters of a text in the echo area or in a prompt.
With 400,000, Emacs did not respond for 3 seconds.")

(defun qwen-companion-untrusted-cut (text)
  "Return TEXT, cut off if it is too long for the echo area."
  (if (> (length text) qwen-companion-untrusted--cut)
      (concat (substring text 0 qwen-companion-untrusted--cut) "…")
    text))

(defun qwen-companion-untrusted-path (path)
  "Return PATH abbreviated, with invisible characters written out.
For the local copy of a remote file, use the remote name."
  (qwen-companion-untrusted-text (qwen-companion-places-abbreviate path)))

(defun qwen-companion-untrusted-mode-line (text)
  "Return TEXT with its percent signs escaped for the mode line."
  (string-replace "%" "%%" text))

;;; Buffers

(defconst qwen-companion-untrusted--mode-limit 250000
  "Length above which a text is shown without syntax highlighting.
Some major modes parse the whole text to highlight its end: C mode took 0.8
seconds for this many characters.")

(defconst qwen-companion-untrusted--line-limit 5000
  "Length of a line above which a text is shown without syntax highlighting.
Emacs highlights whole lines.")

(defconst qwen-companion-untrusted--hooks
  '(change-major-mode-hook change-major-mode-after-body-hook
    after-change-major-mode-hook before-hack-local-variables-hook
    hack-local-variables-hook c-initialization-hook c-mode-common-hook
    sh-set-shell-hook)
  "Hooks that major modes run, besides those named after modes.
Some modes run them directly, although hooks are delayed: HTML modes the
hook of programming modes, diff modes the hook of local variables.")

(defvar qwen-companion-untrusted--mode-hooks nil
  "Cache of mode hooks, (LOADED . HOOKS); LOADED is `load-history' then.")

(defun qwen-companion-untrusted--mode-hooks ()
  "Return all non-empty hooks that major modes may run."
  (unless (eq load-history (car qwen-companion-untrusted--mode-hooks))
    (let ((hooks (copy-sequence qwen-companion-untrusted--hooks)))
      (mapatoms (lambda (symbol)
                  (when (string-match-p "-mode\\(?:-on\\)?-hook\\'" (symbol-name symbol))
                    (push symbol hooks))))
      (setq qwen-companion-untrusted--mode-hooks (cons load-history hooks))))
  (cl-remove-if-not (lambda (hook) (and (boundp hook) (symbol-value hook)))
                    (cdr qwen-companion-untrusted--mode-hooks)))

(defun qwen-companion-untrusted-without-hooks (function)
  "Call FUNCTION to turn on a mode in the current buffer, without hooks.
Keep functions that loaded files add to hooks meanwhile."
  (let ((hooks (qwen-companion-untrusted--mode-hooks))
        (enable-local-variables nil)
        ;; The messages of a starting mode are not about the user's files.
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
No mode hook runs, no global minor mode is turned on and no local variable
is read.  The text is removed meanwhile: a mode that reads it at its start
could need seconds, or be controlled by it."
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
           ;; Fontifying source blocks would turn on their modes, with hooks.
           (setq-local org-src-fontify-natively nil)
           (font-lock-mode 1)))
        (insert text)
        (goto-char point)
        (setq buffer-undo-list undo)))
    (qwen-companion-untrusted-show-hidden)))

(defun qwen-companion-untrusted-major-mode (path)
  "Return the major mode for the file name PATH, or nil.
Use only text and programming modes: others act on their text."
  (let* ((case-fold-search nil)
         (mode (assoc-default (file-name-sans-versions path) auto-mode-alist
                              #'string-match-p))
         (mode (and (symbolp mode)
                    ;; New in Emacs 30; Emacs 29 has only the user's alist.
                    (if (fboundp 'major-mode-remap)
                        (major-mode-remap mode)
                      (alist-get mode (bound-and-true-p major-mode-remap-alist) mode)))))
    (when (and mode (fboundp mode))
      (ignore-errors (autoload-do-load (symbol-function mode) mode))
      (and (cl-some (lambda (parent) (provided-mode-derived-p mode parent))
                    '(prog-mode text-mode conf-mode))
           mode))))

(defconst qwen-companion-untrusted--shown-limit 1000
  "Limit of the hidden characters in a text that are shown by overlays.
A text with more is suspicious enough.")

(defun qwen-companion-untrusted-ascii-p ()
  "Return non-nil when the whole current buffer is ASCII, in constant time."
  (= (buffer-size) (1- (position-bytes (1+ (buffer-size))))))

(defun qwen-companion-untrusted-show-hidden (&optional start end)
  "Show hidden characters from START to END as codes that reorder nothing.
Without these arguments, do so in the whole buffer.  Otherwise a text could
look like another one.  Call this again after changes of the text."
  ;; Otherwise Emacs would search the partner of each bracket in a line.
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
  "Return a warning about hidden characters in the current buffer, or nil.
Ignore lines that are in the buffer BEFORE as well."
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
