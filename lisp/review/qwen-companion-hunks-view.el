;;; qwen-companion-hunks-view.el --- Show hunks as a unified diff  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The renderer of reviews hunk by hunk and of the buffer of changes.
;;
;; Text properties tell headers from lines of the text; nothing is inferred
;; from the text itself, which is untrusted and may look like a header.  A
;; buffer may show hunks of several differences.

;;; Code:

(require 'cl-lib)
(require 'diff-mode)
(require 'qwen-companion-buffers)
(require 'qwen-companion-hunks)
(require 'qwen-companion-merge)
(require 'qwen-companion-untrusted)

(defface qwen-companion-unified-dropped
  ;; With few colours, `shadow' is green, like added lines.
  '((((class color) (min-colors 88)) :inherit shadow :strike-through t)
    (t :slant italic :strike-through t))
  "Face of a hunk that is dropped."
  :group 'qwen-companion)

(defvar-local qwen-companion-hunks-view-note-function #'ignore
  "Function that returns the note in the header of a hunk, or nil.
It gets the difference and the hunk.")

(defvar-local qwen-companion-hunks-view-context-lines 3
  "Lines of context around the hunks in the current buffer.")

(defvar-local qwen-companion-hunks-view-redraw-function nil
  "Function that draws the hunks in the current buffer again.")

(defvar qwen-companion-hunks-view-drawn-hook nil
  "Hook run in a buffer when its hunks, or a part of them, have been drawn.")

(defconst qwen-companion-hunks-view--run-limit 1000
  "Lines after which the rest of a run of removed or added lines is left out.")

(defconst qwen-companion-hunks-view--refine-limit 5000
  "Characters above which the words of a change are not compared.")

;;; Drawing

(defun qwen-companion-hunks-view-draw-button (text function)
  "Insert a line TEXT with RET bound to FUNCTION."
  (let ((start (point)))
    (insert "\\ " text "\n")
    (add-text-properties
     start (point)
     (list 'face 'link
           'mouse-face 'highlight
           'qwen-companion-hunks-view-action function))))

(defun qwen-companion-hunks-view-draw (difference hunk)
  "Insert HUNK of DIFFERENCE at point."
  (let* ((start (point))
         (dropped (qwen-companion-hunks-dropped-p hunk))
         (limit (unless (qwen-companion-hunks-hunk-whole hunk)
                  qwen-companion-hunks-view--run-limit))
         (line (qwen-companion-hunks-view--first-line hunk)))
    (insert (qwen-companion-hunks-view--hunk-header difference hunk))
    (dolist (change (qwen-companion-hunks-hunk-changes hunk))
      (qwen-companion-hunks-view--draw-context
       difference line (qwen-companion-hunks-change-old change))
      (setq line (qwen-companion-hunks-change-end change))
      (qwen-companion-hunks-view--draw-run
       "-" (qwen-companion-hunks-disk-lines difference change limit)
       (qwen-companion-hunks-change-old-count change)
       (list 'removed change)
       (if dropped 'qwen-companion-unified-dropped 'diff-removed))
      (qwen-companion-hunks-view--draw-run
       "+" (qwen-companion-hunks-proposed-lines difference change limit)
       (qwen-companion-hunks-proposed-count change)
       (list (if dropped 'dropped 'added) change)
       (if dropped 'qwen-companion-unified-dropped 'diff-added)))
    (qwen-companion-hunks-view--draw-context
     difference line (+ line (qwen-companion-hunks-hunk-after hunk)))
    (add-text-properties start (point)
                         (list 'qwen-companion-hunks-view-hunk hunk
                               'qwen-companion-hunks-view-difference difference))))

(defun qwen-companion-hunks-view--first-line (hunk)
  "Return the first line on disk of HUNK, including its context."
  (- (qwen-companion-hunks-change-old
      (car (qwen-companion-hunks-hunk-changes hunk)))
     (qwen-companion-hunks-hunk-before hunk)))

(defun qwen-companion-hunks-view-extent (hunk)
  "Return the lines (OLD OLD-COUNT NEW NEW-COUNT) of HUNK with its context.
NEW-COUNT is the number of proposed lines, dropped or not."
  (let* ((changes (qwen-companion-hunks-hunk-changes hunk))
         (before (qwen-companion-hunks-hunk-before hunk))
         (old (qwen-companion-hunks-view--first-line hunk))
         (count (+ (- (qwen-companion-hunks-change-end (car (last changes))) old)
                   (qwen-companion-hunks-hunk-after hunk))))
    (list old count
          (- (qwen-companion-hunks-change-new (car changes)) before)
          (cl-loop for change in changes
                   sum (- (qwen-companion-hunks-proposed-count change)
                          (qwen-companion-hunks-change-old-count change))
                   into more
                   finally return (+ count more)))))

(defun qwen-companion-hunks-view--hunk-header (difference hunk)
  "Return the header line of HUNK of DIFFERENCE."
  (pcase-let ((`(,old ,old-count ,new ,new-count)
               (qwen-companion-hunks-view-extent hunk)))
    (concat
     (propertize
      ;; An empty range is named by the line before it.
      (format "@@ -%d,%d +%d,%d @@" (if (zerop old-count) (1- old) old) old-count
              (if (zerop new-count) (1- new) new) new-count)
      'face 'diff-hunk-header)
     (funcall qwen-companion-hunks-view-note-function difference hunk)
     "\n")))

(defun qwen-companion-hunks-view--draw-context (difference line end)
  "Insert the unchanged lines from LINE up to END of the old text of DIFFERENCE."
  (qwen-companion-hunks-view--draw-run
   " "
   (qwen-companion-hunks-lines (qwen-companion-hunks-old difference) line (- end line))
   (- end line) (list 'context line) 'diff-context))

(defun qwen-companion-hunks-view--draw-run (sign text count source face)
  "Insert TEXT in FACE, with SIGN before each line.
TEXT is the beginning of COUNT lines, or all of them; if some are left
out, insert a button for these.  SOURCE is where the lines come from:
\(`context' LINE), with the line of the first one on disk, or
\(`removed' CHANGE), (`added' CHANGE), (`dropped' CHANGE)."
  (let ((start (point))
        (left count)
        (sign (propertize sign 'help-echo (qwen-companion-hunks-view--sign-words source))))
    (insert text)
    (let ((end (point)))
      (goto-char start)
      (while (< (point) end)
        (insert sign)
        (forward-line 1)
        (cl-incf end (length sign))
        (cl-decf left))
      (goto-char end)
      (unless (or (= start end) (bolp))
        (insert "\n"))
      (add-text-properties start (point)
                           (list 'face face
                                 'qwen-companion-hunks-view-source source
                                 'fontified nil)))
    (cond
     ((> left 0)
      (qwen-companion-hunks-view-draw-button
       (format (if (= left 1) "1 more line (RET shows it)"
                 "%d more lines (RET shows them)")
               left)
       #'qwen-companion-hunks-view--show-whole))
     ((qwen-companion-hunks-unterminated-p text)
      (insert "\\ No newline at end of file\n")))))

(defun qwen-companion-hunks-view--sign-words (source)
  "Return a description of the sign before a line from SOURCE."
  (pcase source
    (`(removed ,(pred qwen-companion-hunks-change-text))
     "Dropped: this line is not removed from the file")
    (`(removed ,_) "Removed by this change")
    (`(added ,_) "Added by this change")
    (`(dropped ,_) "Dropped: this line is not added to the file")
    (_ "Unchanged")))

(defun qwen-companion-hunks-view--show-whole ()
  "Show all lines of the hunk at point."
  (let ((hunk (qwen-companion-hunks-view-hunk-at (point))))
    (setf (qwen-companion-hunks-hunk-whole hunk) t)
    (qwen-companion-hunks-view-redraw hunk (list hunk))))

(defun qwen-companion-hunks-view-redraw (hunk hunks)
  "Replace HUNK by HUNKS on the screen and renumber those below."
  (let* ((inhibit-read-only t)
         (bounds (qwen-companion-hunks-view-bounds hunk))
         (difference (qwen-companion-hunks-view-difference-at (car bounds)))
         (offset (count-lines (car bounds) (line-beginning-position)))
         (column (current-column)))
    (goto-char (car bounds))
    (delete-region (car bounds) (cdr bounds))
    (dolist (new hunks)
      (qwen-companion-hunks-view-draw difference new))
    (qwen-companion-hunks-view--renumber (point))
    (goto-char (car bounds))
    (forward-line offset)
    (move-to-column column)
    (qwen-companion-hunks-view-finish)))

(defun qwen-companion-hunks-view--renumber (start)
  "Update the header of each hunk shown from START, of one difference."
  (save-excursion
    (goto-char start)
    (let (hunk (difference (qwen-companion-hunks-view-difference-at start)))
      (while (and difference
                  (eq difference (qwen-companion-hunks-view-difference-at (point)))
                  (setq hunk (qwen-companion-hunks-view-hunk-at (point))))
        (let ((head (qwen-companion-hunks-view--hunk-header difference hunk))
              (end (line-beginning-position 2)))
          (unless (string= head (buffer-substring-no-properties (point) end))
            (delete-region (point) end)
            (insert (propertize head 'qwen-companion-hunks-view-hunk hunk
                                'qwen-companion-hunks-view-difference difference))))
        (goto-char (next-single-property-change
                    (point) 'qwen-companion-hunks-view-hunk nil (point-max)))))))

(defun qwen-companion-hunks-view-finish ()
  "Show hidden characters as codes, and show point in all windows.
Call this after drawing the current buffer."
  (qwen-companion-untrusted-show-hidden)
  (set-buffer-modified-p nil)
  (run-hooks 'qwen-companion-hunks-view-drawn-hook)
  (dolist (window (get-buffer-window-list nil nil t))
    (set-window-point window (point))))

;;; In words

(defun qwen-companion-hunks-view-describe (difference change)
  "Return CHANGE of DIFFERENCE as a sentence."
  (let* ((words (lambda (verb count text)
                  (and (> count 0)
                       (format "%s%s: %s"
                               verb
                               (if (= count 1) "" (format " %d lines" count))
                               (qwen-companion-untrusted-line text)))))
         (limit qwen-companion-hunks-view--run-limit)
         (line (qwen-companion-hunks-change-old change)))
    (format "Line %d, %s." line
            (mapconcat
             #'identity
             (delq nil
                   (list (funcall words "removed" (qwen-companion-hunks-change-old-count change)
                                  (qwen-companion-hunks-disk-lines difference change limit))
                         (funcall words "added" (qwen-companion-hunks-proposed-count change)
                                  (qwen-companion-hunks-proposed-lines difference change limit))))
             "; "))))

;;; Positions

(defun qwen-companion-hunks-view-hunk-at (position)
  "Return the hunk that is shown at POSITION, or nil."
  (get-text-property position 'qwen-companion-hunks-view-hunk))

(defun qwen-companion-hunks-view-difference-at (position)
  "Return the difference that the hunk at POSITION belongs to, or nil."
  (get-text-property position 'qwen-companion-hunks-view-difference))

(defun qwen-companion-hunks-view-bounds (hunk)
  "Return the positions (START . END) where HUNK is shown."
  (let ((start (text-property-any (point-min) (point-max)
                                  'qwen-companion-hunks-view-hunk hunk)))
    (cons start
          (next-single-property-change start 'qwen-companion-hunks-view-hunk
                                       nil (point-max)))))

(defun qwen-companion-hunks-view-goto-hunk (position back)
  "Go to the first hunk after POSITION, or with BACK to the last before it.
Return nil and stay if there is none."
  (let ((place (qwen-companion-hunks-view--boundary position back)))
    (while (and place
                (not (qwen-companion-hunks-view-hunk-at place)))
      (setq place (qwen-companion-hunks-view--boundary place back)))
    (when place
      (goto-char place))))

(defun qwen-companion-hunks-view--boundary (position back)
  "Return the next start or end of a hunk after POSITION.
With BACK, return the last one before the start of the hunk at POSITION.
Return nil at the end of the buffer, or at its beginning."
  (if back
      (let ((start (qwen-companion-hunks-view--start position 'qwen-companion-hunks-view-hunk)))
        (and (> start (point-min))
             (qwen-companion-hunks-view--start (1- start) 'qwen-companion-hunks-view-hunk)))
    (let ((next (next-single-property-change
                 position 'qwen-companion-hunks-view-hunk nil (point-max))))
      (and (< next (point-max)) next))))

(defun qwen-companion-hunks-view-goto-change (change)
  "Go to the hunk of CHANGE; return nil if it is not shown."
  (let ((place (point-min)) found)
    (while (and (not found) (< place (point-max)))
      (let ((hunk (qwen-companion-hunks-view-hunk-at place)))
        (if (and hunk (memq change (qwen-companion-hunks-hunk-changes hunk)))
            (setq found place)
          (setq place (next-single-property-change
                       place 'qwen-companion-hunks-view-hunk nil (point-max))))))
    (when found
      (goto-char found))))

(defun qwen-companion-hunks-view-show-change (window)
  "Make the first change of the hunk at point visible in WINDOW.
If the lines before the change fill half of WINDOW, go to the change."
  (when-let* ((hunk (qwen-companion-hunks-view-hunk-at (point))))
    (let ((change (line-beginning-position (+ 2 (qwen-companion-hunks-hunk-before hunk)))))
      (unless (and (pos-visible-in-window-p (point) window)
                   (pos-visible-in-window-p change window))
        (when (>= (count-screen-lines (point) change nil window)
                  (/ (window-body-height window) 2))
          (goto-char change))
        (set-window-start window (point))
        (set-window-point window (point))))))

(defun qwen-companion-hunks-view-source-at (position)
  "Return the source of the line at POSITION: (KIND WHAT . INDEX), or nil.
KIND and WHAT are as in `qwen-companion-hunks-view--draw-run'; INDEX
is the index of the line in its run, from 0."
  (when-let* ((source (get-text-property position 'qwen-companion-hunks-view-source)))
    (let ((start (qwen-companion-hunks-view--run-start position)))
      `(,@source
        . ,(count-lines start (save-excursion (goto-char position)
                                              (line-beginning-position)))))))

(defun qwen-companion-hunks-view--start (position property)
  "Return the start of the run of text with the PROPERTY of POSITION."
  (if (and (> position (point-min))
           (eq (get-text-property position property)
               (get-text-property (1- position) property)))
      (previous-single-property-change position property nil (point-min))
    position))

(defun qwen-companion-hunks-view--run-start (position)
  "Return the position of the first of the run of lines at POSITION."
  (qwen-companion-hunks-view--start position 'qwen-companion-hunks-view-source))

(defun qwen-companion-hunks-view--run-end (position)
  "Return the end of the run of lines at POSITION."
  (next-single-property-change
   position 'qwen-companion-hunks-view-source nil (point-max)))

(defun qwen-companion-hunks-view-lines-at ()
  "Return the lines at point in the old and in the new text: (OLD . NEW)."
  (pcase (qwen-companion-hunks-view-source-at (point))
    (`(context ,line . ,index)
     (let ((old (+ line index)))
       (cons old (+ old (qwen-companion-hunks-view--line-shift old)))))
    (`(removed ,change . ,index)
     (cons (+ (qwen-companion-hunks-change-old change) index)
           (qwen-companion-hunks-change-new change)))
    (`(,kind ,change . ,index)
     (cons (qwen-companion-hunks-change-old change)
           (+ (qwen-companion-hunks-change-new change)
              (if (eq kind 'added) index 0))))
    (_ (if-let* ((hunk (qwen-companion-hunks-view-hunk-at (point))))
           (let ((change (car (qwen-companion-hunks-hunk-changes hunk))))
             (cons (qwen-companion-hunks-change-old change)
                   (qwen-companion-hunks-change-new change)))
         (cons 1 1)))))

(defun qwen-companion-hunks-view--line-shift (line)
  "Return the shift of line numbers at the unchanged LINE of the old text.
Add it to LINE for its number in the new text of the difference at point."
  (cl-loop for change in (qwen-companion-hunks-changes
                          (qwen-companion-hunks-view-difference-at (point)))
           while (<= (qwen-companion-hunks-change-end change) line)
           sum (- (qwen-companion-hunks-change-new-count change)
                  (qwen-companion-hunks-change-old-count change))))

;;; Colours

(defun qwen-companion-hunks-view-fontify (start end)
  "Colour the lines from START to END like their own buffers.
Then compare the words of each change there."
  (save-excursion
    (let ((inhibit-read-only t)
          (place start))
      (with-silent-modifications
        (while (< place end)
          (pcase (get-text-property place 'qwen-companion-hunks-view-source)
            (`(,kind ,what)
             (let ((stop (min end (qwen-companion-hunks-view--run-end place))))
               (qwen-companion-hunks-view--colour-run kind what place stop)
               (setq place stop))
             (when (eq kind 'added)
               (qwen-companion-hunks-view--refine (1- place))))
            (_ (setq place (next-single-property-change
                            place 'qwen-companion-hunks-view-source nil end)))))))))

(defun qwen-companion-hunks-view--colour-run (kind what start end)
  "Colour the lines from START to END, which come from KIND and WHAT.
These are as in `qwen-companion-hunks-view--draw-run'."
  (let* ((difference (qwen-companion-hunks-view-difference-at start))
         (old (qwen-companion-hunks-old difference))
         (new (qwen-companion-hunks-new difference)))
    (pcase (and (buffer-live-p old) (buffer-live-p new) kind)
      ('context
       (qwen-companion-hunks-view--copy-colours old what 'diff-context start end))
      ((and 'removed
            (guard (not (qwen-companion-hunks-change-text what))))
       (qwen-companion-hunks-view--copy-colours
        old (qwen-companion-hunks-change-old what) 'diff-removed start end))
      ('added
       (qwen-companion-hunks-view--copy-colours
        new (qwen-companion-hunks-change-new what) 'diff-added start end)))))

(defun qwen-companion-hunks-view--copy-colours (buffer line face start end)
  "Copy the colours of BUFFER over FACE to the lines from START to END.
The run of lines at START begins with LINE of BUFFER."
  (goto-char start)
  (beginning-of-line)
  (let ((place (point))
        (from (+ line (count-lines (qwen-companion-hunks-view--run-start start)
                                   (point))))
        (count (count-lines (point) end)))
    (pcase-let ((`(,source . ,source-end)
                 (qwen-companion-hunks-bounds buffer from count)))
      (with-current-buffer buffer
        (when font-lock-defaults
          (font-lock-ensure source source-end)))
      (put-text-property place end 'face face)
      (while (< place end)
        (goto-char place)
        (let ((line-end (min end (line-end-position))))
          (setq source (qwen-companion-hunks-view--copy-line
                        buffer source source-end (1+ place) line-end)
                place (line-beginning-position 2)))))))

(defun qwen-companion-hunks-view--copy-line (buffer source limit start end)
  "Copy the colours from SOURCE in BUFFER to the text from START to END.
LIMIT is the end of the text in BUFFER.  Return the start of the next
line there."
  (let ((at source))
    (while (< start end)
      (let* ((next (next-single-property-change at 'face buffer limit))
             (face (get-text-property at 'face buffer))
             (stop (min end (+ start (- next at)))))
        (when (<= stop start)
          (setq stop end))
        (when face
          (add-face-text-property start stop face nil))
        (setq at (+ at (- stop start))
              start stop)))
    (with-current-buffer buffer
      (save-excursion
        (goto-char source)
        (min limit (line-beginning-position 2))))))

(defun qwen-companion-hunks-view--refine (position)
  "Mark the words that differ in the change with added lines at POSITION.
This runs during redisplay and must not block: the Python process
compares the words, and the lines are coloured again after that."
  (let* ((start (qwen-companion-hunks-view--run-start position))
         (before (max (point-min) (1- start)))
         (change (cadr (get-text-property position 'qwen-companion-hunks-view-source)))
         (words (qwen-companion-hunks-change-words change)))
    (when (and (equal (list 'removed change)
                      (get-text-property before 'qwen-companion-hunks-view-source))
               (not (get-text-property start 'qwen-companion-hunks-view-refined)))
      (cond
       ((vectorp words)
        (put-text-property start (1+ start) 'qwen-companion-hunks-view-refined t)
        (cl-loop with removed = (qwen-companion-hunks-view--run-start before)
                 for index from 0 below (length words) by 4
                 do (qwen-companion-hunks-view--mark-words
                     removed (aref words index) (aref words (+ index 1))
                     (qwen-companion-hunks-view--refined-face
                      'diff-refine-removed 'diff-removed))
                 (qwen-companion-hunks-view--mark-words
                  start (aref words (+ index 2)) (aref words (+ index 3))
                  (qwen-companion-hunks-view--refined-face
                   'diff-refine-added 'diff-added))))
       ((and (null words)
             (buffer-live-p (qwen-companion-hunks-old
                             (qwen-companion-hunks-view-difference-at position)))
             (< (- (qwen-companion-hunks-view--run-end position)
                   (qwen-companion-hunks-view--run-start before))
                qwen-companion-hunks-view--refine-limit))
        (qwen-companion-hunks-view--request-words
         (qwen-companion-hunks-view-difference-at position) change))))))

(defun qwen-companion-hunks-view--refined-face (strong soft)
  "Return the face of words that differ, made of the faces STRONG and SOFT.
On a display with few colours, STRONG inverts the syntax colours of the
text, so a removed string would be green; invert those of SOFT there."
  (if (< (display-color-cells) 256)
      (list strong soft)
    strong))

(defun qwen-companion-hunks-view--request-words (difference change)
  "Have the words of CHANGE of DIFFERENCE compared.
Its lines are coloured again after that."
  (let* ((buffer (current-buffer))
         (old (qwen-companion-hunks-disk-lines difference change)))
    (setf (qwen-companion-hunks-change-words change) 'asked)
    (qwen-companion-merge-texts
     nil old (qwen-companion-hunks-proposed-lines difference change) '("" "" "")
     (lambda (merged)
       (let ((words (if merged (qwen-companion-merge-result-edits merged) [])))
         (setf (qwen-companion-hunks-change-words change)
               ;; If everything differs, mark nothing.
               (if (and (= 4 (length words)) (= 0 (aref words 0))
                        (= (length old) (aref words 1)))
                   []
                 words)))
       (qwen-companion-buffers-when-live buffer
         (qwen-companion-hunks-view--recolour change))))))

(defun qwen-companion-hunks-view--recolour (change)
  "Have the lines of CHANGE coloured again if they are shown."
  (when-let* ((start (save-excursion (qwen-companion-hunks-view-goto-change change)))
              (hunk (qwen-companion-hunks-view-hunk-at start)))
    (with-silent-modifications
      (put-text-property start (cdr (qwen-companion-hunks-view-bounds hunk))
                         'fontified nil))))

(defun qwen-companion-hunks-view--mark-words (run from to face)
  "Show characters FROM to TO of the run of lines at RUN in FACE.
Both are offsets from 0; the signs before the lines are neither counted
nor marked."
  (save-excursion
    (goto-char (1+ run))
    (while (and (< from to) (not (eobp)))
      (let ((size (- (line-end-position) (point))))
        (when (< from size)
          (let ((overlay (make-overlay (+ (point) from)
                                       (+ (point) (min to size)))))
            (overlay-put overlay 'evaporate t)
            (overlay-put overlay 'face face)))
        ;; And the newline.
        (setq from (max 0 (- from size 1))
              to (- to size 1))
        (unless (eq 1 (forward-line 1))
          (skip-chars-forward "-+" (1+ (point))))))))

;;; Context

(defun qwen-companion-hunks-more-context (&optional count)
  "Show COUNT more lines of context around the hunks, one by default.
Hunks that then touch are joined, except where you have split them."
  (interactive "p" diff-mode special-mode)
  (unless qwen-companion-hunks-view-redraw-function
    (user-error "Not in a buffer with hunks"))
  (cl-callf (lambda (lines) (max 0 (+ lines (or count 1))))
      qwen-companion-hunks-view-context-lines)
  (funcall qwen-companion-hunks-view-redraw-function)
  (message "%d lines of context" qwen-companion-hunks-view-context-lines))

(defun qwen-companion-hunks-less-context (&optional count)
  "Show COUNT fewer lines of context around the hunks, one by default.
Without context, each change is a hunk."
  (interactive "p" diff-mode special-mode)
  (qwen-companion-hunks-more-context (- (or count 1))))

(provide 'qwen-companion-hunks-view)
;;; qwen-companion-hunks-view.el ends here
