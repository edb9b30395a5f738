;;; qwen-companion-chat-markdown.el --- Markdown in a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Fontifies Markdown in a chat.  Its characters stay; text gets faces, and
;; code blocks get the faces of their language.
;;
;; The text comes from a model and is untrusted.  It is never evaluated.  Only
;; modes for programs and text are used for it, without hooks and local
;; variables, in a temporary buffer, and only for displayed text.
;;
;; The columns of tables are aligned by display properties, and markup is only
;; hidden, so that searching and copying use the original text.

;;; Code:

(require 'cl-lib)
(require 'jit-lock)
(require 'outline)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-chat-blocks)
(require 'qwen-companion-chat-inline)
(require 'qwen-companion-chat-places)
(require 'qwen-companion-untrusted)

(defface qwen-companion-chat-inline-code
  '((t :inherit (fixed-pitch font-lock-constant-face)))
  "Face of code inside a line in a chat."
  :group 'qwen-companion)

(defface qwen-companion-chat-user
  '((((class color) (min-colors 88) (background light)) :background "grey90" :extend t)
    (((class color) (min-colors 88) (background dark)) :background "grey22" :extend t)
    (t :inherit bold))
  "Face of the messages of users."
  :group 'qwen-companion)

(defface qwen-companion-chat-title
  '((t :inherit bold))
  "Face of a Markdown heading in a chat."
  :group 'qwen-companion)

(defface qwen-companion-chat-thought
  '((t :inherit (italic shadow)))
  "Face of the model's thoughts."
  :group 'qwen-companion)

(defcustom qwen-companion-chat-hide-markup t
  "Whether to hide the markup characters of answers.
These are stars, backticks and the like around words, hash signs before
headings, and fences of code.  Copied text includes them.
`qwen-companion-chat-toggle-markup' shows or hides them in one chat."
  :group 'qwen-companion
  :type 'boolean)

(defconst qwen-companion-chat-markdown--code-limit 20000
  "Characters above which a code block is not fontified in its language.")

(defconst qwen-companion-chat-markdown--colour-delay 0.1
  "Seconds after which code that has come into view is fontified.")

(defconst qwen-companion-chat-markdown--idle-delay 0.5
  "Seconds of idle time before code is fontified.
Loading a mode takes up to 0.2 s.")

(defconst qwen-companion-chat-markdown--colour-timeout 1
  "Processor time in seconds after which a code block is not fontified again.")

(defconst qwen-companion-chat-markdown--line-limit 2000
  "Characters above which a line is shown without emphasis and links.")

(defconst qwen-companion-chat-markdown--extensions
  '(("bash" . "sh") ("c++" . "cpp") ("common-lisp" . "lisp") ("elisp" . "el")
    ("emacs-lisp" . "el") ("javascript" . "js") ("markdown" . "md") ("perl" . "pl")
    ("python" . "py") ("ruby" . "rb") ("rust" . "rs") ("shell" . "sh")
    ("typescript" . "ts") ("zsh" . "sh"))
  "Alist (LANGUAGE . EXTENSION) where the two differ.")

(defvar-local qwen-companion-chat-markdown--pending nil
  "Markers in the code blocks that are to be fontified.")

;;; Floods

;; Text that arrives faster than it can be read is displayed without faces
;; until it slows down.  The faces of 2 MB add 50 ms to each garbage
;; collection; faces of only the visible lines, redrawn ten times a second,
;; add 15 ms.

(defconst qwen-companion-chat-markdown--flood '(0.1 4000 2000)
  "Limits for displaying text without faces: (SECONDS BEGIN CONTINUE).
Begin after more than BEGIN characters, two screens full, within SECONDS,
and continue while more than CONTINUE come.")

(defvar-local qwen-companion-chat-markdown--new nil
  "Number of characters received since TIME: (TIME . CHARACTERS).
Nil before the first text.")

(defvar-local qwen-companion-chat-markdown--flood-start nil
  "Marker at the start of text that came too fast, nil for none.")

(defun qwen-companion-chat-markdown--count-text (start length)
  "Count LENGTH new characters at START; begin a flood if they are too many."
  (pcase-let ((`(,seconds ,begin ,_) qwen-companion-chat-markdown--flood)
              (since (car qwen-companion-chat-markdown--new)))
    (unless (or qwen-companion-chat-markdown--flood-start
                (and since (<= 0 (- (float-time) since) seconds)))
      (setq qwen-companion-chat-markdown--new (cons (float-time) 0)))
    (cl-incf (cdr qwen-companion-chat-markdown--new) length)
    (when (and (> (cdr qwen-companion-chat-markdown--new) begin)
               (not qwen-companion-chat-markdown--flood-start))
      (setq qwen-companion-chat-markdown--flood-start (copy-marker start))
      (qwen-companion-chat-markdown--check-flood-later))))

(defun qwen-companion-chat-markdown--check-flood-later ()
  "Check soon for the end of the flood."
  (setcdr qwen-companion-chat-markdown--new 0)
  (run-at-time (car qwen-companion-chat-markdown--flood) nil
               #'qwen-companion-chat-markdown--check-flood (current-buffer)))

(defun qwen-companion-chat-markdown--check-flood (chat)
  "End the flood in the buffer CHAT unless text still comes too fast."
  (when (and (buffer-live-p chat)
             (buffer-local-value 'qwen-companion-chat-markdown--flood-start chat))
    (with-current-buffer chat
      (if (> (cdr qwen-companion-chat-markdown--new) (nth 2 qwen-companion-chat-markdown--flood))
          (qwen-companion-chat-markdown--check-flood-later)
        (qwen-companion-chat-markdown--end-flood)))))

(defun qwen-companion-chat-markdown--postpone-faces (start end)
  "Display the text from the line of START to END without faces."
  (when qwen-companion-chat-markdown--flood-start
    (save-excursion
      (goto-char start)
      (forward-line 0)
      (with-silent-modifications
        (put-text-property (point) end 'fontified t)))))

(defun qwen-companion-chat-markdown--end-flood ()
  "End the flood: fontify its text where it is displayed."
  (let ((start (marker-position qwen-companion-chat-markdown--flood-start)))
    (set-marker qwen-companion-chat-markdown--flood-start nil)
    (setq qwen-companion-chat-markdown--flood-start nil)
    (save-restriction
      (widen)
      (with-silent-modifications
        (put-text-property start qwen-companion-chat-blocks-conversation-end 'fontified nil)))))

;;; Code blocks

(cl-defstruct (qwen-companion-chat-reader
               (:copier nil)
               (:constructor qwen-companion-chat-markdown--make-reader))
  "The progress of searching a block for code.
OFFSET, from the start of the block, is the first incomplete line.  CODE
is the code block that is open there, or nil."
  (offset 0) code)

(defun qwen-companion-chat-markdown--properties (voice)
  "Return the text properties of text by VOICE."
  (let ((face (qwen-companion-chat-markdown-face voice)))
    `(qwen-companion-chat-voice ,voice ,@(and face `(face ,face)))))

(defun qwen-companion-chat-markdown-propertize (text voice)
  "Return TEXT by VOICE with its text properties."
  (apply #'propertize text (qwen-companion-chat-markdown--properties voice)))

(defun qwen-companion-chat-markdown-begin (id offset voice)
  "Process the text by VOICE that begins at OFFSET of the block ID."
  (let ((block (qwen-companion-chat-blocks-get id)))
    (setf (qwen-companion-chat-block-data block)
          (qwen-companion-chat-markdown--make-reader :offset offset))
    (qwen-companion-chat-markdown--process
     block (+ offset (qwen-companion-chat-block-start block)) voice)))

(defun qwen-companion-chat-markdown-append (id text voice)
  "Append TEXT by VOICE to the block ID."
  (let* ((block (qwen-companion-chat-blocks-get id))
         (end (1- (qwen-companion-chat-block-end block))))
    (qwen-companion-chat-blocks-append id text (qwen-companion-chat-markdown--properties voice))
    (qwen-companion-chat-markdown--process block end voice)))

(defun qwen-companion-chat-markdown--process (block start voice)
  "Fold long lines and find code in BLOCK from START on, text by VOICE."
  (qwen-companion-chat-markdown--count-text start (- (qwen-companion-chat-block-end block) start))
  (unless (eq voice 'thought)
    (qwen-companion-chat-blocks-fold-lines start (1- (qwen-companion-chat-block-end block)))
    (qwen-companion-chat-markdown--find-code block))
  (qwen-companion-chat-markdown--postpone-faces start (qwen-companion-chat-block-end block)))

(defun qwen-companion-chat-markdown-face (voice)
  "Return the face of text by VOICE, or nil."
  (pcase voice
    ('thought 'qwen-companion-chat-thought)
    ('user 'qwen-companion-chat-user)))

(defconst qwen-companion-chat-markdown--opening-fence
  (concat "\\([ \t]*\\(?:\\(?:>\\|" qwen-companion-chat-inline-item "\\)[ \t]*\\)*\\)"
          "\\(```+\\|~~~+\\)[ \t]*\\([^ \t\n`]*\\)[^`\n]*$")
  "Matches a line that may begin a code block.
The groups are the markers of lists and quotes, the fence and the language.")

(defun qwen-companion-chat-markdown--opening-fence-p ()
  "Return non-nil when the line at point begins a code block.
If indented by four columns, it does so only in a list."
  (and (looking-at qwen-companion-chat-markdown--opening-fence)
       (let ((prefix (match-string-no-properties 1)))
         (or (string-match-p "[^ \t]" prefix)
             (< (string-width prefix) 4)
             (save-match-data
               (qwen-companion-chat-inline-in-list-p (string-width prefix)))))))

(defun qwen-companion-chat-markdown--find-code (block)
  "Find the code blocks in the unread part of BLOCK."
  (let* ((reader (qwen-companion-chat-block-data block))
         (start (qwen-companion-chat-block-start block))
         (inhibit-field-text-motion t))
    (qwen-companion-buffers-widened
      ;; The newline at the end of the block is not part of the text.
      (goto-char (1- (qwen-companion-chat-block-end block)))
      (let ((last-line (line-beginning-position)))
        (goto-char (+ start (qwen-companion-chat-reader-offset reader)))
        (with-silent-modifications
          (qwen-companion-chat-markdown--read-lines reader last-line)
          (setf (qwen-companion-chat-reader-offset reader) (- last-line start))
          ;; The last line may stay without its newline.
          (when-let* ((code (qwen-companion-chat-reader-code reader)))
            (goto-char last-line)
            (when (qwen-companion-chat-markdown--fence-p code)
              (qwen-companion-chat-markdown--close-code code))))))))

(defun qwen-companion-chat-markdown--read-lines (reader end)
  "Process the complete lines from point to END for READER."
  (let ((start (point)))
    ;; Checking each line of a long text would take too long.
    (while (re-search-forward "```\\|~~~" end t)
      (forward-line 0)
      (let ((code (qwen-companion-chat-reader-code reader)))
        (cond
         ((and (not code) (qwen-companion-chat-markdown--opening-fence-p))
          (setf (qwen-companion-chat-reader-code reader)
                (qwen-companion-chat-inline-make-code
                 :margin (- (match-end 1) (match-beginning 1))
                 :fence (match-string-no-properties 2)
                 :language (match-string-no-properties 3)))
          (put-text-property (point) (line-beginning-position 2) 'qwen-companion-chat-fence t)
          (setq start (line-beginning-position 2)))
         ((and code (qwen-companion-chat-markdown--fence-p code))
          (qwen-companion-chat-markdown--add-code code start (point))
          (setf (qwen-companion-chat-reader-code reader) nil)
          (qwen-companion-chat-markdown--close-code code)
          (setq start (line-beginning-position 2)))))
      (forward-line))
    (when-let* ((code (qwen-companion-chat-reader-code reader)))
      (qwen-companion-chat-markdown--add-code code start end))))

(defun qwen-companion-chat-markdown--add-code (code start end)
  "Add the lines from START to END to CODE, and open it again."
  (when (< start end)
    (setf (qwen-companion-chat-code-closed code) nil
          (qwen-companion-chat-code-coloured code) nil)
    (remove-list-of-text-properties start end '(qwen-companion-chat-fence))
    (put-text-property start end 'qwen-companion-chat-code code)))

(defun qwen-companion-chat-markdown--fence-p (code)
  "Return non-nil when the line at point is the closing fence of CODE."
  (looking-at (format "[ \t>]\\{0,%d\\}%s+[ \t]*$"
                      (+ 3 (qwen-companion-chat-code-margin code))
                      (regexp-quote (qwen-companion-chat-code-fence code)))))

(defun qwen-companion-chat-markdown--close-code (code)
  "Mark CODE as complete; its closing fence is the line at point."
  (setf (qwen-companion-chat-code-closed code) t)
  (put-text-property (point) (line-beginning-position 2) 'qwen-companion-chat-fence t)
  (pcase-let* ((`(,from . ,end) (qwen-companion-chat-markdown--code-extent code (point)))
               (to (min end (or qwen-companion-chat-markdown--flood-start end))))
    ;; It may already be displayed without its faces.
    (when (< from to)
      (put-text-property from to 'fontified nil))))

(defun qwen-companion-chat-markdown--code-extent (code end)
  "Return (START . END) of CODE, which ends at END."
  (let ((start end))
    (while (and (> start (point-min))
                (eq code (get-text-property (1- start) 'qwen-companion-chat-code)))
      (setq start (previous-single-property-change
                   start 'qwen-companion-chat-code nil (point-min))))
    (cons start end)))

;;; Faces

(defun qwen-companion-chat-markdown-enable ()
  "Fontify the conversation of the current buffer when it is displayed."
  (when qwen-companion-chat-hide-markup
    (add-to-invisibility-spec 'qwen-companion-chat-markup))
  (jit-lock-register #'qwen-companion-chat-markdown--fontify))

(defun qwen-companion-chat-markdown--hidden-p ()
  "Return non-nil when the current chat hides markup."
  (memq 'qwen-companion-chat-markup buffer-invisibility-spec))

(defun qwen-companion-chat-toggle-markup ()
  "Show the hidden markup of the answers in this chat, or hide it again.
The option `qwen-companion-chat-hide-markup' sets this for new chats."
  (interactive nil qwen-companion-chat-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-chat-mode)
  (if (qwen-companion-chat-markdown--hidden-p)
      (remove-from-invisibility-spec 'qwen-companion-chat-markup)
    (add-to-invisibility-spec 'qwen-companion-chat-markup))
  ;; Columns of tables are aligned to what is visible.
  (jit-lock-refontify)
  (message "Markup is %s" (if (qwen-companion-chat-markdown--hidden-p) "hidden" "shown")))

(defun qwen-companion-chat-markdown--hide (start end)
  "Hide the markup from START to END if it is part of an answer."
  (when (eq 'answer (get-text-property start 'qwen-companion-chat-voice))
    (put-text-property start end 'invisible 'qwen-companion-chat-markup)))

(defun qwen-companion-chat-markdown--fontify (start end)
  "Fontify the lines from START to END, and all of each table in them.
Return the region as `jit-lock-functions' do."
  (save-excursion
    (save-match-data
      (goto-char start)
      (forward-line 0)
      (with-silent-modifications
        (let (;; Finding fields processes all overlays of the buffer.
              (inhibit-field-text-motion t)
              ;; Whether the line before is a row outside of any aligned table:
              ;; then the rows right below it are outside, too.
              plain)
          (while (< (point) end)
            (let* ((voice (car (memq (get-text-property (point) 'qwen-companion-chat-voice)
                                     '(answer user))))
                   (row (and voice (qwen-companion-chat-markdown--table-row-p)))
                   (table (and row (not plain) (qwen-companion-chat-markdown--table-extent)))
                   (from (if table (car table) (point)))
                   (to (if table (cdr table) (line-beginning-position 2))))
              (setq plain (and row (not table)))
              (when voice
                (qwen-companion-chat-markdown--fontify-lines from to voice table))
              (when table
                (qwen-companion-chat-markdown--table-align from to)
                (setq start (min start from)
                      end (max end to)))
              (goto-char to)))
          (qwen-companion-untrusted-show-hidden start end)))))
  `(jit-lock-bounds ,start . ,end))

(defun qwen-companion-chat-markdown--fontify-lines (from to voice table)
  "Fontify the lines from FROM to TO, text by VOICE, of a TABLE if non-nil."
  (goto-char from)
  (while (< (point) to)
    (let ((start (point))
          (end (line-end-position)))
      (qwen-companion-chat-markdown--fontify-line end table)
      (when-let* ((face (qwen-companion-chat-markdown-face voice)))
        (qwen-companion-chat-markdown--add-face start end face))
      (goto-char end)
      (forward-line))))

(defun qwen-companion-chat-markdown--fontify-line (end row)
  "Fontify the line at point, up to END; ROW is non-nil for a row of a table."
  (let ((code (get-text-property (point) 'qwen-companion-chat-code)))
    ;; With its newline, since a fence is hidden with that.
    (remove-text-properties (point) (1+ end) '(invisible nil))
    (cond
     ((get-text-property (point) 'qwen-companion-chat-fence)
      (put-text-property (point) end 'face 'qwen-companion-chat-markup)
      (qwen-companion-chat-markdown--hide-fence end))
     ((not code) (qwen-companion-chat-markdown--fontify-markdown end row))
     ((eq t (qwen-companion-chat-code-coloured code)))
     (t (put-text-property (point) (1+ end) 'face 'qwen-companion-chat-code)
        (when (and (qwen-companion-chat-code-closed code)
                   (not (qwen-companion-chat-code-coloured code)))
          (setf (qwen-companion-chat-code-coloured code) 'pending)
          (push (point-marker) qwen-companion-chat-markdown--pending)
          (qwen-companion-chat-markdown--start-timer))))))

(defun qwen-companion-chat-markdown--add-face (start end face)
  "Add FACE, below existing faces, to the text from START to END."
  (while (< start end)
    (let ((next (next-single-property-change start 'face nil end)))
      (unless (memq face (ensure-list (get-text-property start 'face)))
        (add-face-text-property start next face t))
      (setq start next))))

(defun qwen-companion-chat-markdown--hide-fence (end)
  "Hide the fence at point, whose line ends at END.
The language stays; a line without one is hidden with its newline."
  (when (looking-at "\\([ \t]*\\(?:[^`~ \t\n][^`~\n]*\\)?\\)[`~]+[ \t]*")
    (qwen-companion-chat-markdown--hide
     ;; The marker of a list stays.
     (if (string-blank-p (match-string 1)) (point) (match-end 1))
     (if (and (= end (match-end 0))
              (string-blank-p (match-string 1))
              ;; Not the newline at the end of the block, before which more may
              ;; come.
              (get-text-property end 'qwen-companion-chat-voice))
         (1+ end)
       (match-end 0)))))

;;; Fontifying code

;; A mode takes 1 to 300 ms for a code block, and longer to be loaded: too
;; long to delay redisplay or keys.

(defvar-local qwen-companion-chat-markdown--timer nil
  "Timer for the next of the pending code blocks, or nil.")

(defun qwen-companion-chat-markdown--start-timer ()
  "Start the timer for the pending code blocks, unless it is running."
  (unless qwen-companion-chat-markdown--timer
    (setq qwen-companion-chat-markdown--timer
          (run-at-time qwen-companion-chat-markdown--colour-delay nil
                       #'qwen-companion-chat-markdown--colour-next (current-buffer)))))

(defun qwen-companion-chat-markdown--colour-next (chat)
  "Fontify the next pending code block of the buffer CHAT.
Try again later when the user types, before or meanwhile."
  (qwen-companion-buffers-when-live chat
    (setq qwen-companion-chat-markdown--timer nil)
    (when (or noninteractive
              (time-less-p qwen-companion-chat-markdown--idle-delay (or (current-idle-time) 0)))
      (qwen-companion-chat-markdown--colour-pending))
    (when qwen-companion-chat-markdown--pending
      (qwen-companion-chat-markdown--start-timer))))

(defun qwen-companion-chat-markdown--colour-pending ()
  "Fontify the next pending code block, or put it last when the user types."
  (when-let* ((marker (pop qwen-companion-chat-markdown--pending)))
    (qwen-companion-buffers-widened
      (goto-char marker)
      (let ((code (get-text-property (point) 'qwen-companion-chat-code)))
        (when (and code (eq 'pending (qwen-companion-chat-code-coloured code)))
          (if (qwen-companion-chat-markdown--colour code)
              (setf (qwen-companion-chat-code-coloured code) t)
            ;; Try the others first, which may be quicker.
            (setq qwen-companion-chat-markdown--pending
                  (append qwen-companion-chat-markdown--pending
                          (list (copy-marker marker))))))))
    (set-marker marker nil)))

(defun qwen-companion-chat-markdown--file-name (code)
  "Return a file name for the language of CODE, nil if that is no name."
  (let ((language (downcase (qwen-companion-chat-code-language code))))
    (when (string-match-p "\\`[[:alnum:]+#-]+\\'" language)
      (concat "code." (alist-get language qwen-companion-chat-markdown--extensions
                                 language nil #'equal)))))

(defun qwen-companion-chat-markdown--colour (code)
  "Fontify all of CODE, which is at point, in its language.
Return nil if the user's input has interrupted that; try again then."
  (pcase-let ((`(,start . ,end)
               (qwen-companion-chat-markdown--code-extent
                code (next-single-property-change
                      (point) 'qwen-companion-chat-code nil (point-max))))
              (name (qwen-companion-chat-markdown--file-name code))
              ;; Processor time: a busy machine must not count against CODE.
              (begun (float-time (get-internal-run-time))))
    (or (not name)
        (>= (- end start) qwen-companion-chat-markdown--code-limit)
        ;; Load the mode without interruption: half of it would be useless.
        (not (qwen-companion-buffers-without-collecting
               (qwen-companion-untrusted-major-mode name)))
        (not (eq t (qwen-companion-untrusted-until-input
                       (qwen-companion-chat-markdown--colour-as name start end)
                       'done)))
        (> (- (float-time (get-internal-run-time)) begun)
           qwen-companion-chat-markdown--colour-timeout))))

(defun qwen-companion-chat-markdown--colour-as (name start end)
  "Fontify the text from START to END like a file with NAME."
  (let ((text (buffer-substring-no-properties start end))
        (target (current-buffer)))
    (with-temp-buffer
      (insert text)
      (qwen-companion-untrusted-set-major-mode name)
      (ignore-errors (font-lock-ensure))
      (let ((source (current-buffer)))
        (with-current-buffer target
          (with-silent-modifications
            (put-text-property start end 'face 'qwen-companion-chat-code)
            (with-current-buffer source
              (qwen-companion-chat-markdown--copy-faces target start))
            (when-let* ((face (qwen-companion-chat-markdown-face
                               (get-text-property start 'qwen-companion-chat-voice))))
              (qwen-companion-chat-markdown--add-face start end face))))))))

(defun qwen-companion-chat-markdown--copy-faces (target start)
  "Add the faces of the current buffer to the buffer TARGET from START on."
  (let ((from (point-min)))
    (while (< from (point-max))
      (let ((to (next-single-property-change from 'face nil (point-max))))
        (when-let* ((face (get-text-property from 'face)))
          (let ((begin (+ start from -1))
                (end (+ start to -1)))
            (with-current-buffer target
              (add-face-text-property begin end face))))
        (setq from to)))))

(defconst qwen-companion-chat-markdown--break
  "[ \t]*\\(?:-[ \t]*-[ \t]*-\\|\\*[ \t]*\\*[ \t]*\\*\\|_[ \t]*_[ \t]*_\\)[-*_ \t]*$"
  "Matches a line that is drawn as a rule.")

(defconst qwen-companion-chat-markdown--line-rules
  `(("#\\{1,6\\} .*" . qwen-companion-chat-title)
    ("[ \t]*\\(?:[-*+]\\|[0-9]\\{1,9\\}[.)]\\)[ \t]" . bold)
    ("[ \t]*>.*" . italic)
    (,qwen-companion-chat-markdown--break . qwen-companion-chat-markup))
  "Alist (REGEXP . FACE) for the beginnings of lines.")

(defconst qwen-companion-chat-markdown--levels
  [outline-1 outline-2 outline-3 outline-4 outline-5 outline-6]
  "Faces of the levels of headings.")

(defun qwen-companion-chat-markdown--fontify-markdown (end row)
  "Fontify the line of Markdown at point, which ends at END.
ROW is non-nil for a row of a table."
  (let ((start (point)))
    (remove-text-properties start end '(face nil))
    (when (< (- end start) qwen-companion-chat-markdown--line-limit)
      (pcase-dolist (`(,pattern . ,face) qwen-companion-chat-markdown--line-rules)
        (when (looking-at pattern)
          (put-text-property start (match-end 0) 'face face)))
      (when (looking-at "\\(#\\{1,6\\}\\) ")
        (add-face-text-property
         start end
         (aref qwen-companion-chat-markdown--levels (- (match-end 1) start 1)) t)
        (add-face-text-property start (match-end 1) 'qwen-companion-chat-markup)
        (qwen-companion-chat-markdown--hide start (match-end 0)))
      (qwen-companion-chat-markdown--add-wrap-prefix start end)
      (qwen-companion-chat-markdown--forget-places start end)
      (unless (looking-at-p qwen-companion-chat-markdown--break)
        (mapc #'qwen-companion-chat-markdown--fontify-span
              (qwen-companion-chat-inline-spans end row)))
      (qwen-companion-chat-markdown--link-places start end))))

(defun qwen-companion-chat-markdown--add-wrap-prefix (start end)
  "Align continuation lines of the line from START to END with its text.
In a list, that is the text after the bullet."
  (let ((prefix (get-text-property start 'line-prefix))
        (indentation (if (looking-at "[ \t]*\\(?:[-*+]\\|[0-9]\\{1,9\\}[.)]\\|>\\)[ \t]+\\|[ \t]+")
                         (string-width (match-string-no-properties 0))
                       0)))
    (if (or prefix (> indentation 0))
        (put-text-property start end 'wrap-prefix (concat prefix (make-string indentation ?\s)))
      (remove-list-of-text-properties start end '(wrap-prefix)))))

(defun qwen-companion-chat-markdown--fontify-span (span)
  "Fontify SPAN, an element of `qwen-companion-chat-inline-spans'."
  (pcase-let* ((`(,kind ,start ,end ,width) span)
               (`(,from . ,to) (pcase kind
                                 ('link (cons (1+ start) width))
                                 ('address (cons start end))
                                 (_ (cons (+ start width) (- end width))))))
    (add-face-text-property from to (pcase kind
                                      ('code 'qwen-companion-chat-inline-code)
                                      ('strong 'bold)
                                      ('emphasis 'italic)
                                      ('struck '(:strike-through t))
                                      (_ 'link)))
    (pcase-dolist (`(,begin . ,end) (list (cons start from) (cons to end)))
      (add-face-text-property begin end 'qwen-companion-chat-markup)
      ;; The target of a link stays visible: the text is untrusted.
      (unless (or (= begin end) (eq kind 'link))
        (qwen-companion-chat-markdown--hide begin end)))
    (when (memq kind '(link address))
      (qwen-companion-chat-markdown--link
       from to (if (eq kind 'link)
                   (buffer-substring-no-properties (+ to 2) (1- end))
                 (buffer-substring-no-properties from to))))))

;;; Links

(defvar qwen-companion-chat-markdown-link-map
  (qwen-companion-buffers-keymap
   :parent qwen-companion-chat-conversation-map
   "RET" #'qwen-companion-chat-follow-link
   [mouse-2] #'qwen-companion-chat-follow-link
   [follow-link] 'mouse-face)
  "Keymap of a link.")

(defun qwen-companion-chat-markdown--link (start end url)
  "Make the text from START to END a link to URL if a browser can open it.
Other links name files on the daemon's host."
  (when (string-match-p "\\`https?://" url)
    (add-text-properties start end
                         (list 'qwen-companion-chat-url url
                               'keymap qwen-companion-chat-markdown-link-map
                               'mouse-face 'highlight 'help-echo url))))

(defconst qwen-companion-chat-markdown--place
  "\\([^][(){}<>\"'`*|:,; \t\n]+\\):\\([1-9][0-9]\\{0,6\\}\\)\\_>"
  "Matches a file and a line in an answer.")

(defconst qwen-companion-chat-markdown--places-limit 5
  "Limit of the file names checked in a line, at up to 0.6 ms each.")

(defun qwen-companion-chat-markdown--link-places (start end)
  "Turn names of existing files with lines, from START to END, into links."
  (goto-char start)
  (cl-loop repeat qwen-companion-chat-markdown--places-limit
           while (re-search-forward qwen-companion-chat-markdown--place end t)
           do (let ((from (match-beginning 0))
                    (to (match-end 0))
                    (name (match-string-no-properties 1))
                    (line (string-to-number (match-string-no-properties 2))))
                (when (and (not (get-text-property from 'qwen-companion-chat-url))
                           (save-match-data (qwen-companion-chat-places-in-workspace name)))
                  (add-face-text-property from to 'link)
                  (add-text-properties
                   from to
                   (list 'qwen-companion-chat-place (cons name line)
                         'keymap qwen-companion-chat-markdown-link-map
                         'mouse-face 'highlight 'help-echo "RET, mouse-2: visit"))))))

(defun qwen-companion-chat-markdown--forget-places (start end)
  "Remove the links to files from START to END.
While an answer comes, a name may turn out to be longer."
  (when (text-property-not-all start end 'qwen-companion-chat-place nil)
    (remove-list-of-text-properties
     start end '(qwen-companion-chat-place keymap mouse-face help-echo))))

(defun qwen-companion-chat-follow-link (&optional event)
  "Open the link at point, or where EVENT happened, in a browser.
Visit a file, at its line, in another window."
  (interactive (list last-nonmenu-event))
  (pcase-let ((`(,url . ,place)
               (save-excursion
                 (when (mouse-event-p event)
                   (posn-set-point (event-start event)))
                 (cons (get-text-property (point) 'qwen-companion-chat-url)
                       (get-text-property (point) 'qwen-companion-chat-place)))))
    (cond (url (browse-url url))
          (place (qwen-companion-chat-places-visit
                  ;; It may have become a symbolic link to elsewhere.
                  (or (qwen-companion-chat-places-in-workspace (car place))
                      (user-error "%s is no longer a file of the daemon's workspace"
                                  (qwen-companion-untrusted-text (car place))))
                  (cdr place)))
          (t (user-error "No link here")))))

;;; Copying code

(defun qwen-companion-chat-markdown--code-here ()
  "Return the text of the code block at point, else of the last one."
  (save-restriction
    (widen)
    (let* ((place (if (get-text-property (point) 'qwen-companion-chat-code)
                      (point)
                    (qwen-companion-chat-markdown--last-code)))
           (code (and place (get-text-property place 'qwen-companion-chat-code))))
      (unless code
        (user-error "No code block in this chat"))
      (pcase-let ((`(,start . ,end)
                   (qwen-companion-chat-markdown--code-extent
                    code (next-single-property-change
                          place 'qwen-companion-chat-code nil (point-max)))))
        (qwen-companion-chat-markdown--without-margin
         (buffer-substring-no-properties start end)
         (qwen-companion-chat-code-margin code))))))

(defun qwen-companion-chat-markdown--without-margin (text margin)
  "Return TEXT, of a code block, without the MARGIN of its list or quote."
  (if (= 0 margin)
      text
    (replace-regexp-in-string (format "^[ \t>]\\{1,%d\\}" margin) "" text)))

(defun qwen-companion-chat-markdown--last-code ()
  "Return a position in the last code block, or nil."
  (qwen-companion-buffers-require-mode 'qwen-companion-chat-mode)
  (let ((place (marker-position qwen-companion-chat-blocks-conversation-end)))
    (while (and (> place (point-min))
                (not (get-text-property (1- place) 'qwen-companion-chat-code)))
      (setq place (previous-single-property-change
                   place 'qwen-companion-chat-code nil (point-min))))
    (and (> place (point-min)) (1- place))))

(defun qwen-companion-chat-copy-code ()
  "Copy the code block at point, else the last one."
  (interactive nil qwen-companion-chat-mode)
  (kill-new (qwen-companion-chat-markdown--code-here))
  (message "Copied the code block"))

(defun qwen-companion-chat-insert-code ()
  "Insert the code block at point, else the last one, into the last file.
This is done at point in the most recently used buffer that visits a file."
  (interactive nil qwen-companion-chat-mode)
  (let ((code (qwen-companion-chat-markdown--code-here))
        (buffer (cl-find-if #'buffer-file-name (buffer-list))))
    (unless buffer
      (user-error "No file buffer to insert the code into"))
    (with-selected-window (or (get-buffer-window buffer) (display-buffer buffer))
      (barf-if-buffer-read-only)
      (push-mark nil t)
      (insert code))
    (message "Inserted the code block into %s" (buffer-name buffer))))

(define-key qwen-companion-chat-conversation-map "w" #'qwen-companion-chat-copy-code)
(define-key qwen-companion-chat-conversation-map "i" #'qwen-companion-chat-insert-code)

;;; Tables

(defconst qwen-companion-chat-markdown--table-limit 200
  "Most lines of a table that are aligned; further lines stay as written.
All of them are scanned whenever a line is added.")

(defconst qwen-companion-chat-markdown--table-row "[ \t]*|"
  "Matches the beginning of a row of a table.")

(defconst qwen-companion-chat-markdown--table-rule
  "[ \t]*|\\(?:[ \t]*:?-+:?[ \t]*|\\)*[ \t]*:?-+:?[ \t]*|?[ \t]*$"
  "Matches the second line of a table, which sets the alignment of columns.")

(defun qwen-companion-chat-markdown--table-extent ()
  "Return (START . END) of the table at point, beginnings of lines, or nil.
Return nil below the aligned lines of a long table, too."
  (save-excursion
    (unless (qwen-companion-chat-markdown--skip-rows -1)
      (unless (qwen-companion-chat-markdown--table-row-p)
        (forward-line))
      (let ((start (point)))
        (forward-line)
        (when (and (looking-at qwen-companion-chat-markdown--table-rule)
                   ;; The line is complete, so it is not the beginning of a row.
                   (get-text-property (match-end 0) 'qwen-companion-chat-voice))
          (goto-char start)
          (qwen-companion-chat-markdown--skip-rows 1)
          (cons start (point)))))))

(defun qwen-companion-chat-markdown--skip-rows (step)
  "Skip the rows from point on, by STEP lines at a time, 1 or -1.
Stop after as many as are aligned; return non-nil if another row follows."
  (let ((left qwen-companion-chat-markdown--table-limit))
    (while (and (> left 0)
                (qwen-companion-chat-markdown--table-row-p)
                (zerop (forward-line step)))
      (cl-decf left))
    (and (zerop left) (qwen-companion-chat-markdown--table-row-p))))

(defun qwen-companion-chat-markdown--table-row-p ()
  "Return non-nil when the line at point may belong to a table."
  (and (looking-at-p qwen-companion-chat-markdown--table-row)
       (not (get-text-property (point) 'qwen-companion-chat-code))))

(defun qwen-companion-chat-markdown--table-cells (end)
  "Return the cells of the row at point, which ends at END.
Each is (START . END) without the white space around it."
  (let (cells)
    (while (and (eq ?| (char-after)) (< (point) end))
      (forward-char)
      (let ((start (point)))
        (while (progn (skip-chars-forward "^|\\\\" end)
                      ;; A `|' after a backslash is no separator.
                      (and (eq ?\\ (char-after)) (< (1+ (point)) end)))
          (forward-char 2))
        (unless (and (= (point) end) (string-blank-p (buffer-substring start end)))
          (push (qwen-companion-chat-markdown--table-trimmed start (point)) cells))))
    (nreverse cells)))

(defun qwen-companion-chat-markdown--table-trimmed (start end)
  "Return (START . END) without the white space at both ends."
  (save-excursion
    (goto-char end)
    (skip-chars-backward " \t" start)
    (let ((end (point)))
      (goto-char start)
      (skip-chars-forward " \t" end)
      (cons (point) end))))

(defun qwen-companion-chat-markdown--table-width (cell)
  "Return the width of CELL, as far as it is visible, in columns."
  (pcase-let ((`(,start . ,end) cell)
              (hidden (qwen-companion-chat-markdown--hidden-p))
              (width 0))
    (while (< start end)
      (let ((next (next-single-property-change start 'invisible nil end)))
        (unless (and hidden (get-text-property start 'invisible))
          (cl-incf width (string-width (buffer-substring-no-properties start next))))
        (setq start next)))
    width))

(defun qwen-companion-chat-markdown--table-align (start end)
  "Align the columns of the table from START to END."
  (save-excursion
    (goto-char start)
    (let ((number 0) rows rule widths)
      (while (< (point) end)
        (let* ((from (progn (skip-chars-forward " \t") (point)))
               (to (line-end-position))
               (cells (qwen-companion-chat-markdown--table-cells to)))
          (if (= 1 number)
              (setq rule cells)
            (cl-loop for cell in cells
                     for column from 0
                     do (setf (alist-get column widths)
                              (max (qwen-companion-chat-markdown--table-width cell)
                                   (alist-get column widths 3)))))
          (push (list from to cells) rows)
          (cl-incf number))
        (forward-line))
      (remove-text-properties start end '(display nil))
      (pcase-dolist (`(,from ,to ,cells) rows)
        (add-face-text-property from to 'fixed-pitch t)
        (if (eq cells rule)
            (qwen-companion-chat-markdown--table-draw
             from to
             (concat "|" (mapconcat (lambda (column)
                                      (make-string (+ 2 (alist-get column widths 3)) ?-))
                                    (number-sequence 0 (1- (length rule)))
                                    "|")
                     "|"))
          (qwen-companion-chat-markdown--table-align-row from to cells widths rule))))))

(defun qwen-companion-chat-markdown--table-right-p (rule)
  "Return non-nil when RULE, a cell of the second line, aligns to the right."
  (and rule
       (not (eq ?: (char-after (car rule))))
       (eq ?: (char-before (cdr rule)))))

(defun qwen-companion-chat-markdown--table-align-row (from to cells widths rule)
  "Align CELLS of the line from FROM to TO to columns of WIDTHS.
RULE has the cells of the second line."
  ;; The text between two cells has one display string; it is never empty.
  (let ((place from)
        (before "| "))
    (cl-loop for cell in cells
             for column from 0
             for room = (make-string (max 0 (- (alist-get column widths 3)
                                               (qwen-companion-chat-markdown--table-width cell)))
                                     ?\s)
             for right = (qwen-companion-chat-markdown--table-right-p (nth column rule))
             do (qwen-companion-chat-markdown--table-draw place (car cell)
                                                          (concat before (if right room "")))
             (setq place (cdr cell)
                   before (concat (if right "" room) " | ")))
    (qwen-companion-chat-markdown--table-draw place to (string-trim-right before))))

(defun qwen-companion-chat-markdown--table-draw (start end text)
  "Display TEXT instead of the text from START to END, unless that is empty."
  (when (< start end)
    (put-text-property start end 'display text)))

(provide 'qwen-companion-chat-markdown)
;;; qwen-companion-chat-markdown.el ends here
