;;; qwen-companion-review-unified.el --- Reviews hunk by hunk in one buffer  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; The front end that shows a proposal as a unified diff.  What is accepted
;; is the text in the proposal's own buffer, as in the other front end;
;; dropping a hunk here changes that text, see qwen-companion-hunks.el.
;;
;; The buffer looks like one of `diff-mode', and the commands of that mode
;; that only read it work.  Those that would edit it, or apply it to a file,
;; are not bound.  Text properties tell headers from lines of the text;
;; nothing is inferred from the text itself, which is untrusted and may
;; look like a header.

;;; Code:

(require 'cl-lib)
(require 'diff-mode)
(require 'outline)
(require 'subr-x)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-hunks)
(require 'qwen-companion-merge)
(require 'qwen-companion-review-edit)
(require 'qwen-companion-review-windows)
(require 'qwen-companion-roots)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-unified-context 3
  "Lines of context around the hunks of a review.
In a review, \\<qwen-companion-unified-mode-map>\\[qwen-companion-unified-more-context] and \\[qwen-companion-unified-less-context] change it for that one.
With 0, adjacent changes are hunks of their own."
  :group 'qwen-companion
  :type 'natnum)

(defface qwen-companion-unified-dropped
  '((t :inherit shadow :strike-through t))
  "Face of a hunk that is dropped."
  :group 'qwen-companion)

(defconst qwen-companion-review-unified--page-lines 1000
  "Lines after which no more hunks are shown until the user asks for them.")

(defconst qwen-companion-review-unified--run-limit 1000
  "Lines after which the rest of a run of removed or added lines is left out.")

(defconst qwen-companion-review-unified--refine-limit 5000
  "Characters above which the words of a change are not compared.")

(defconst qwen-companion-review-unified--compare-delay 0.2
  "Seconds after which a text that was changed elsewhere is compared again.")

(defvar-local qwen-companion-review-unified--context nil
  "Lines of context around the hunks in the current buffer.")
(defvar-local qwen-companion-review-unified--ignore-space nil
  "Non-nil to hide hunks that change white space only.")
(defvar-local qwen-companion-review-unified--hunks nil
  "All hunks in order, shown or not.")
(defvar-local qwen-companion-review-unified--undrawn nil
  "The tail of `qwen-companion-review-unified--hunks' that is not shown yet.")
(defvar-local qwen-companion-review-unified--state nil
  "Symbol `comparing' or `failed', or nil when the hunks are valid.")
(defvar-local qwen-companion-review-unified--status nil
  "The number of kept hunks, as shown to the user.")
(defvar-local qwen-companion-review-unified--keys nil
  "The keys, as shown to the user: (FIRST . OTHERS).")
(defvar-local qwen-companion-review-unified--file-label nil
  "The file with its project, as shown to the user.")

(defvar-local qwen-companion-review-unified--timer nil
  "Timer in the buffer of a proposal that has its text compared again.")

;;; The mode

(defvar qwen-companion-unified-mode-map
  (let ((map (make-sparse-keymap)))
    ;; Not that of `diff-mode', see the commentary.
    (set-keymap-parent map special-mode-map)
    (pcase-dolist (`(,key . ,command)
                   '(("n" . qwen-companion-unified-next)
                     ("p" . qwen-companion-unified-previous)
                     ("k" . qwen-companion-unified-drop)
                     ("u" . qwen-companion-unified-restore)
                     ("s" . qwen-companion-unified-split)
                     ("e" . qwen-companion-unified-edit)
                     ("RET" . qwen-companion-unified-visit)
                     ("w" . qwen-companion-unified-toggle-space)
                     ("+" . qwen-companion-unified-more-context)
                     ("-" . qwen-companion-unified-less-context)
                     ("TAB" . qwen-companion-diff-switch)
                     ("q" . qwen-companion-diff-bury)
                     ("C-c C-c" . qwen-companion-unified-accept)
                     ("C-c C-k" . qwen-companion-diff-reject)
                     ("C-c C-u" . qwen-companion-diff-show-unsaved)
                     ("C-c C-l" . qwen-companion-diff-toggle-line-ends)))
      (define-key map (kbd key) command))
    map)
  "Keymap of a review hunk by hunk.")

(define-derived-mode qwen-companion-unified-mode diff-mode "Review"
  "Major mode of a review hunk by hunk.
Accepting sends the proposed text without the dropped hunks.

The hooks of `diff-mode' do not run: they expect patches.  This mode has
a hook of its own.

\\{qwen-companion-unified-mode-map}"
  :interactive nil
  ;; The functions of `diff-mode' parse the text; ours use properties.
  (setq font-lock-defaults nil)
  (setq-local diff-refine nil
              diff-font-lock-syntax nil
              minor-mode-overriding-map-alist nil
              outline-regexp "@@ "
              outline-level (lambda () 1)
              revert-buffer-function #'qwen-companion-review-unified--revert
              truncate-lines nil
              ;; Read-only, but not by the mode that would bind its keys.
              buffer-read-only t)
  (remove-hook 'write-contents-functions #'diff-write-contents-hooks t)
  (buffer-disable-undo)
  (jit-lock-register #'qwen-companion-review-unified--fontify))

(defun qwen-companion-review-unified--make-buffer (proposal)
  "Return a new buffer to show PROPOSAL."
  (let ((buffer (qwen-companion-proposal-make-buffer proposal "hunks")))
    (with-current-buffer buffer
      (let ((enable-local-variables nil)
            (diff-default-read-only nil)
            ;; It would run after each change and command.
            (diff-update-on-the-fly nil)
            (change-major-mode-hook nil))
        ;; As for the sides of a review, keep global modes off the buffer.
        (delay-mode-hooks (qwen-companion-unified-mode))
        (kill-local-variable 'delayed-mode-hooks)
        (run-hooks 'qwen-companion-unified-mode-hook))
      (setq qwen-companion-proposal-current proposal
            qwen-companion-review-unified--context qwen-companion-unified-context
            qwen-companion-review-unified--file-label (qwen-companion-review-place proposal)
            qwen-companion-review-unified--keys
            (cons (substitute-command-keys
                   "\\[qwen-companion-unified-accept] accept  \\[qwen-companion-diff-reject] reject")
                  (substitute-command-keys
                   "\\[qwen-companion-unified-next]/\\[qwen-companion-unified-previous] next/previous  \\[qwen-companion-unified-drop] drop  \\[qwen-companion-unified-restore] bring back  \\[qwen-companion-unified-split] split  \\[qwen-companion-unified-edit] edit  \\[qwen-companion-unified-visit] source  \\[qwen-companion-unified-toggle-space] white space  \\[qwen-companion-unified-more-context]/\\[qwen-companion-unified-less-context] context  \\[qwen-companion-diff-switch] Ediff  \\[qwen-companion-diff-bury] put aside"))
            header-line-format '(:eval (qwen-companion-review-unified--header)))
      (add-hook 'kill-buffer-hook
                #'qwen-companion-review-windows-control-killed nil t))
    buffer))

(defun qwen-companion-review-unified--difference (&optional proposal)
  "Return the difference of PROPOSAL, by default that of this buffer."
  (let ((proposal (or proposal qwen-companion-proposal-current)))
    (or (qwen-companion-proposal-difference proposal)
        (setf (qwen-companion-proposal-difference proposal)
              (make-qwen-companion-hunks
               :old (qwen-companion-proposal-disk-buffer proposal)
               :new (qwen-companion-proposal-buffer proposal))))))

(defun qwen-companion-review-unified--header ()
  "Return the header line: keys, number of kept hunks, warnings and file.
The number comes early, so that it is not pushed off the screen."
  (qwen-companion-untrusted-mode-line
   (format " %s  %s%s%s%s  %s  %s: proposed by %s%s"
           (car qwen-companion-review-unified--keys)
           qwen-companion-review-unified--status
           (qwen-companion-review-warnings qwen-companion-proposal-current)
           (or (qwen-companion-review-unsaved-hint "C-c C-u") "")
           (concat (qwen-companion-review-warning-hint qwen-companion-proposal-current)
                   (qwen-companion-review-line-ends-hint "C-c C-l")
                   (qwen-companion-review-bidi-hint))
           (cdr qwen-companion-review-unified--keys)
           qwen-companion-review-unified--file-label
           (qwen-companion-untrusted-text
            (qwen-companion-proposal-client qwen-companion-proposal-current))
           (if (qwen-companion-proposal-edited-p qwen-companion-proposal-current)
               ", edited by you"
             ""))))

(defun qwen-companion-review-unified--status-text ()
  "Return the number of kept hunks, or the reason why there is none."
  (pcase qwen-companion-review-unified--state
    ('comparing "comparing...")
    ('failed "not comparable")
    (_
     (let ((all (length qwen-companion-review-unified--hunks))
           (dropped (cl-count-if #'qwen-companion-hunks-dropped-p
                                 qwen-companion-review-unified--hunks))
           (hidden (cl-count-if #'qwen-companion-hunks-hunk-hidden
                                qwen-companion-review-unified--hunks)))
       (concat (format "%d of %d hunk%s kept" (- all dropped) all
                       (if (= all 1) "" "s"))
               (when qwen-companion-review-unified--ignore-space
                 (format ", %d hidden: only white space" hidden)))))))

;;; Drawing

(defun qwen-companion-review-unified--draw ()
  "Redraw all hunks, keeping point in its hunk."
  (let ((inhibit-read-only t)
        (change (when-let* ((hunk (qwen-companion-review-unified--hunk-at (point))))
                  (car (qwen-companion-hunks-hunk-changes hunk))))
        (shown (count-lines (point-min) (point-max)))
        (difference (qwen-companion-review-unified--difference)))
    (erase-buffer)
    (setq qwen-companion-review-unified--hunks
          (qwen-companion-hunks-group
           (qwen-companion-hunks-changes difference)
           qwen-companion-review-unified--context
           (qwen-companion-hunks-line-count (qwen-companion-hunks-old difference)))
          qwen-companion-review-unified--undrawn qwen-companion-review-unified--hunks)
    (qwen-companion-review-unified--mark-hidden)
    (qwen-companion-review-unified--draw-file)
    (qwen-companion-review-unified--draw-page
     (max shown qwen-companion-review-unified--page-lines))
    (qwen-companion-review-unified--draw-stranded)
    (goto-char (point-min))
    (or (and change (qwen-companion-review-unified--goto-change change))
        (qwen-companion-review-unified--goto-hunk (point-min) nil)
        (goto-char (or (text-property-any (point-min) (point-max)
                                          'qwen-companion-review-unified-line-ends t)
                       (point-min))))
    (qwen-companion-review-unified--finish-drawing)))

(defun qwen-companion-review-unified--finish-drawing ()
  "Finish drawing: update status, bidi display and window points."
  (qwen-companion-untrusted-show-bidi-controls)
  (set-buffer-modified-p nil)
  (qwen-companion-review-unified--update-status)
  (dolist (window (get-buffer-window-list nil nil t))
    (set-window-point window (point))))

(defun qwen-companion-review-unified--update-status ()
  "Update the number of kept hunks in the header line."
  (setq qwen-companion-review-unified--status (qwen-companion-review-unified--status-text))
  (force-mode-line-update))

(defun qwen-companion-review-unified--show-text (text)
  "Show TEXT in place of the hunks."
  (let ((inhibit-read-only t))
    (erase-buffer)
    (insert text "\n")
    (setq qwen-companion-review-unified--hunks nil
          qwen-companion-review-unified--undrawn nil)
    (qwen-companion-review-unified--finish-drawing)))

(defun qwen-companion-review-unified--mark-hidden ()
  "Mark the hunks that are not to be shown."
  (dolist (hunk qwen-companion-review-unified--hunks)
    (setf (qwen-companion-hunks-hunk-hidden hunk)
          (and qwen-companion-review-unified--ignore-space
               (qwen-companion-hunks-only-space-p
                (qwen-companion-review-unified--difference) hunk)))))

(defun qwen-companion-review-unified--draw-file ()
  "Insert the header of the file."
  (let* ((path (qwen-companion-proposal-path qwen-companion-proposal-current))
         (root (qwen-companion-roots-of default-directory))
         (real (qwen-companion-proposal-real qwen-companion-proposal-current))
         (name (qwen-companion-untrusted-text
                (cond (real) (root (file-relative-name path root)) (path))))
         (start (point)))
    (insert "--- "
            (if (file-exists-p path) (concat "a/" name) null-device)
            "\n+++ b/" name "\n")
    (put-text-property start (point) 'face 'diff-file-header)
    (if-let* ((text (qwen-companion-proposal-line-end-summary qwen-companion-proposal-current)))
        (let ((start (point)))
          (insert "\\ " (upcase-initials (substring text 0 1)) (substring text 1)
                  (if (qwen-companion-proposal-as-on-disk qwen-companion-proposal-current)
                      "; u here takes what is proposed\n"
                    "; k here keeps what is on disk\n"))
          (add-text-properties start (point)
                               '(face warning qwen-companion-review-unified-line-ends t)))
      (unless qwen-companion-review-unified--hunks
        (insert "There is no difference any more.\n")))))

(defun qwen-companion-review-unified--draw-page (lines)
  "Insert the next hunks at point until there are at least LINES lines.
Then insert a button for the rest, if any."
  (let ((count 0))
    (while (and qwen-companion-review-unified--undrawn (< count lines))
      (let ((hunk (pop qwen-companion-review-unified--undrawn))
            (start (point)))
        (unless (qwen-companion-hunks-hunk-hidden hunk)
          (qwen-companion-review-unified--draw-hunk hunk)
          (cl-incf count (count-lines start (point)))))))
  (let ((rest (cl-count-if-not #'qwen-companion-hunks-hunk-hidden
                               qwen-companion-review-unified--undrawn)))
    (when (> rest 0)
      (qwen-companion-review-unified--draw-button
       (format "%d more hunk%s: RET here shows more" rest (if (= rest 1) "" "s"))
       #'qwen-companion-review-unified--show-more))))

(defun qwen-companion-review-unified--draw-button (text function)
  "Insert a line TEXT in which RET is to call FUNCTION."
  (let ((start (point)))
    (insert "\\ " text "\n")
    (add-text-properties
     start (point)
     (list 'face 'link
           'mouse-face 'highlight
           'qwen-companion-review-unified-action function))))

(defun qwen-companion-review-unified--show-more ()
  "Show the next page of hunks in place of its button."
  (let ((inhibit-read-only t)
        (place (text-property-any (point-min) (point-max)
                                  'qwen-companion-review-unified-action
                                  #'qwen-companion-review-unified--show-more)))
    (when place
      (goto-char place)
      (delete-region place (min (point-max) (1+ (line-end-position))))
      (save-excursion
        (qwen-companion-review-unified--draw-page qwen-companion-review-unified--page-lines))
      (qwen-companion-review-unified--finish-drawing))))

(defun qwen-companion-review-unified--draw-hunk (hunk)
  "Insert HUNK at point."
  (let* ((start (point))
         (difference (qwen-companion-review-unified--difference))
         (dropped (qwen-companion-hunks-dropped-p hunk))
         (limit (unless (qwen-companion-hunks-hunk-whole hunk)
                  qwen-companion-review-unified--run-limit))
         (line (qwen-companion-review-unified--first-line hunk)))
    (insert (qwen-companion-review-unified--hunk-header hunk))
    (dolist (change (qwen-companion-hunks-hunk-changes hunk))
      (qwen-companion-review-unified--draw-context
       line (qwen-companion-hunks-change-old change))
      (setq line (qwen-companion-hunks-change-end change))
      (qwen-companion-review-unified--draw-run
       "-" (qwen-companion-hunks-disk-lines difference change limit)
       (qwen-companion-hunks-change-old-count change)
       (list 'removed change)
       (if dropped 'qwen-companion-unified-dropped 'diff-removed))
      (qwen-companion-review-unified--draw-run
       "+" (qwen-companion-hunks-proposed-lines difference change limit)
       (qwen-companion-hunks-proposed-count change)
       (list (if dropped 'dropped 'added) change)
       (if dropped 'qwen-companion-unified-dropped 'diff-added)))
    (qwen-companion-review-unified--draw-context
     line (+ line (qwen-companion-hunks-hunk-after hunk)))
    (put-text-property start (point) 'qwen-companion-review-unified-hunk hunk)))

(defun qwen-companion-review-unified--first-line (hunk)
  "Return the first line on disk of HUNK, including its context."
  (- (qwen-companion-hunks-change-old
      (car (qwen-companion-hunks-hunk-changes hunk)))
     (qwen-companion-hunks-hunk-before hunk)))

(defun qwen-companion-review-unified--extent (hunk)
  "Return the lines (OLD OLD-COUNT NEW NEW-COUNT) of HUNK with its context.
NEW-COUNT is the number of proposed lines, dropped or not."
  (let* ((changes (qwen-companion-hunks-hunk-changes hunk))
         (before (qwen-companion-hunks-hunk-before hunk))
         (old (qwen-companion-review-unified--first-line hunk))
         (count (+ (- (qwen-companion-hunks-change-end (car (last changes))) old)
                   (qwen-companion-hunks-hunk-after hunk))))
    (list old count
          (- (qwen-companion-hunks-change-new (car changes)) before)
          (cl-loop for change in changes
                   sum (- (qwen-companion-hunks-proposed-count change)
                          (qwen-companion-hunks-change-old-count change))
                   into more
                   finally return (+ count more)))))

(defun qwen-companion-review-unified--hunk-header (hunk)
  "Return the header line of HUNK."
  (pcase-let ((`(,old ,old-count ,new ,new-count)
               (qwen-companion-review-unified--extent hunk)))
    (concat
     (propertize
      ;; An empty range is named by the line before it.
      (format "@@ -%d,%d +%d,%d @@" (if (zerop old-count) (1- old) old) old-count
              (if (zerop new-count) (1- new) new) new-count)
      'face 'diff-hunk-header)
     (and (qwen-companion-hunks-dropped-p hunk)
          (propertize " dropped, u brings it back" 'face 'warning))
     "\n")))

(defun qwen-companion-review-unified--draw-context (line end)
  "Insert the unchanged lines on disk from LINE up to END."
  (qwen-companion-review-unified--draw-run
   " "
   (qwen-companion-hunks-lines
    (qwen-companion-hunks-old (qwen-companion-review-unified--difference))
    line (- end line))
   (- end line) (list 'context line) 'diff-context))

(defun qwen-companion-review-unified--draw-run (sign text count source face)
  "Insert TEXT in FACE, with SIGN before each line.
TEXT is the beginning of COUNT lines, or all of them; if some are left
out, insert a button for these.  SOURCE is where the lines come from:
\(`context' LINE), with the line of the first one on disk, or
\(`removed' CHANGE), (`added' CHANGE), (`dropped' CHANGE)."
  (let ((start (point))
        (left (- count (qwen-companion-hunks-count-lines text))))
    (insert text)
    (let ((end (copy-marker (point) t)))
      (goto-char start)
      (while (< (point) end)
        (insert sign)
        (forward-line 1))
      (goto-char end)
      (unless (or (= start end) (bolp))
        (insert "\n"))
      (add-text-properties start (point)
                           (list 'face face
                                 'qwen-companion-review-unified-source source
                                 'fontified nil))
      (set-marker end nil))
    (cond
     ((> left 0)
      (qwen-companion-review-unified--draw-button
       (format "%d more lines: RET here shows them" left)
       #'qwen-companion-review-unified--show-whole))
     ((qwen-companion-hunks-unterminated-p text)
      (insert "\\ No newline at end of file\n")))))

(defun qwen-companion-review-unified--show-whole ()
  "Show all lines of the hunk at point."
  (let ((hunk (qwen-companion-review-unified--hunk-at (point))))
    (setf (qwen-companion-hunks-hunk-whole hunk) t)
    (qwen-companion-review-unified--redraw hunk (list hunk))))

(defun qwen-companion-review-unified--draw-stranded ()
  "Insert at the end what was dropped and cannot be restored.
The lines are comments, not a part of the diff."
  (let ((stranded (qwen-companion-hunks-stranded
                   (qwen-companion-review-unified--difference))))
    (when stranded
      (goto-char (point-max))
      (dolist (change (reverse stranded))
        (let ((start (point)))
          (insert "# Dropped; its place was edited, so u cannot bring it back:\n")
          (dolist (line (split-string (string-remove-suffix
                                       "\n" (qwen-companion-hunks-change-text change))
                                      "\n"))
            (insert "# " line "\n"))
          (add-text-properties
           start (point)
           '(face shadow qwen-companion-review-unified-stranded t)))))))

(defun qwen-companion-review-unified--redraw (hunk hunks)
  "Replace HUNK by HUNKS on the screen and renumber those below."
  (let* ((inhibit-read-only t)
         (bounds (qwen-companion-review-unified--bounds hunk))
         (offset (count-lines (car bounds) (line-beginning-position)))
         (column (current-column)))
    (goto-char (car bounds))
    (delete-region (car bounds) (cdr bounds))
    (mapc #'qwen-companion-review-unified--draw-hunk hunks)
    (qwen-companion-review-unified--renumber (point))
    (goto-char (car bounds))
    (forward-line offset)
    (move-to-column column)
    (qwen-companion-review-unified--finish-drawing)))

(defun qwen-companion-review-unified--renumber (start)
  "Update the header of each hunk shown from START."
  (save-excursion
    (goto-char start)
    (let (hunk)
      (while (and (setq hunk (qwen-companion-review-unified--hunk-at (point)))
                  (not (eobp)))
        (let ((head (qwen-companion-review-unified--hunk-header hunk))
              (end (line-beginning-position 2)))
          (unless (string= head (buffer-substring-no-properties (point) end))
            (delete-region (point) end)
            (insert (propertize head 'qwen-companion-review-unified-hunk hunk))))
        (goto-char (next-single-property-change
                    (point) 'qwen-companion-review-unified-hunk nil (point-max)))))))

;;; Where things are

(defun qwen-companion-review-unified--hunk-at (position)
  "Return the hunk that is shown at POSITION, or nil."
  (get-text-property position 'qwen-companion-review-unified-hunk))

(defun qwen-companion-review-unified--bounds (hunk)
  "Return the positions (START . END) where HUNK is shown."
  (let ((start (text-property-any (point-min) (point-max)
                                  'qwen-companion-review-unified-hunk hunk)))
    (cons start
          (next-single-property-change start 'qwen-companion-review-unified-hunk
                                       nil (point-max)))))

(defun qwen-companion-review-unified--goto-hunk (position back)
  "Go to the first hunk after POSITION, or with BACK to the last before it.
Return nil and stay if there is none."
  (let ((place (qwen-companion-review-unified--boundary position back)))
    (while (and place
                (not (qwen-companion-review-unified--hunk-at place)))
      (setq place (qwen-companion-review-unified--boundary place back)))
    (when place
      (goto-char place))))

(defun qwen-companion-review-unified--boundary (position back)
  "Return the next start or end of a hunk after POSITION.
With BACK, return the last one before the start of the hunk at POSITION.
Return nil at the end of the buffer, or at its beginning."
  (if back
      (let ((start (qwen-companion-review-unified--hunk-start position)))
        (and (> start (point-min))
             (qwen-companion-review-unified--hunk-start (1- start))))
    (let ((next (next-single-property-change
                 position 'qwen-companion-review-unified-hunk nil (point-max))))
      (and (< next (point-max)) next))))

(defun qwen-companion-review-unified--hunk-start (position)
  "Return the start of the hunk, or of the text between hunks, at POSITION."
  (if (and (> position (point-min))
           (eq (qwen-companion-review-unified--hunk-at position)
               (qwen-companion-review-unified--hunk-at (1- position))))
      (previous-single-property-change
       position 'qwen-companion-review-unified-hunk nil (point-min))
    position))

(defun qwen-companion-review-unified--goto-change (change)
  "Go to the hunk of CHANGE; return nil if it is not shown."
  (when-let* ((hunk (cl-find-if
                     (lambda (hunk)
                       (memq change (qwen-companion-hunks-hunk-changes hunk)))
                     qwen-companion-review-unified--hunks))
              (place (text-property-any (point-min) (point-max)
                                        'qwen-companion-review-unified-hunk hunk)))
    (goto-char place)))

(defun qwen-companion-review-unified--source-at (position)
  "Return the source of the line at POSITION: (KIND WHAT . INDEX), or nil.
KIND and WHAT are as in `qwen-companion-review-unified--draw-run'; INDEX
is the index of the line in its run, from 0."
  (when-let* ((source (get-text-property position 'qwen-companion-review-unified-source)))
    (let ((start (qwen-companion-review-unified--run-start position)))
      `(,@source
        . ,(count-lines start (save-excursion (goto-char position)
                                              (line-beginning-position)))))))

(defun qwen-companion-review-unified--run-start (position)
  "Return the position of the first of the run of lines at POSITION."
  (if (and (> position (point-min))
           (eq (get-text-property position 'qwen-companion-review-unified-source)
               (get-text-property (1- position) 'qwen-companion-review-unified-source)))
      (previous-single-property-change
       position 'qwen-companion-review-unified-source nil (point-min))
    position))

(defun qwen-companion-review-unified--run-end (position)
  "Return the end of the run of lines at POSITION."
  (next-single-property-change
   position 'qwen-companion-review-unified-source nil (point-max)))

;;; Colours

(defun qwen-companion-review-unified--fontify (start end)
  "Colour the lines from START to END like their own buffers.
Then compare the words of each change there."
  (save-excursion
    (let ((inhibit-read-only t)
          (place start))
      (with-silent-modifications
        (while (< place end)
          (pcase (get-text-property place 'qwen-companion-review-unified-source)
            (`(,kind ,what)
             (let ((stop (min end (qwen-companion-review-unified--run-end place))))
               (qwen-companion-review-unified--colour-run kind what place stop)
               (setq place stop))
             (when (eq kind 'added)
               (qwen-companion-review-unified--refine (1- place))))
            (_ (setq place (next-single-property-change
                            place 'qwen-companion-review-unified-source nil end)))))))))

(defun qwen-companion-review-unified--colour-run (kind what start end)
  "Colour the lines from START to END, which come from KIND and WHAT.
These are as in `qwen-companion-review-unified--draw-run'."
  (let* ((difference (qwen-companion-review-unified--difference))
         (old (qwen-companion-hunks-old difference))
         (new (qwen-companion-hunks-new difference)))
    (pcase kind
      ('context
       (qwen-companion-review-unified--copy-colours old what 'diff-context start end))
      ((and 'removed
            (guard (not (qwen-companion-hunks-change-text what))))
       (qwen-companion-review-unified--copy-colours
        old (qwen-companion-hunks-change-old what) 'diff-removed start end))
      ('added
       (qwen-companion-review-unified--copy-colours
        new (qwen-companion-hunks-change-new what) 'diff-added start end)))))

(defun qwen-companion-review-unified--copy-colours (buffer line face start end)
  "Copy the colours of BUFFER over FACE to the lines from START to END.
The run of lines at START begins with LINE of BUFFER."
  (goto-char start)
  (beginning-of-line)
  (let ((place (point))
        (from (+ line (count-lines (qwen-companion-review-unified--run-start start)
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
          (setq source (qwen-companion-review-unified--copy-line
                        buffer source source-end (1+ place) line-end)
                place (line-beginning-position 2)))))))

(defun qwen-companion-review-unified--copy-line (buffer source limit start end)
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

(defun qwen-companion-review-unified--refine (position)
  "Mark the words that differ in the change with added lines at POSITION.
This runs during redisplay, so it waits for no program: the Python
process compares the words, and the lines are coloured again after that."
  (let* ((start (qwen-companion-review-unified--run-start position))
         (before (max (point-min) (1- start)))
         (change (cadr (get-text-property position 'qwen-companion-review-unified-source)))
         (words (qwen-companion-hunks-change-words change)))
    (when (and (equal (list 'removed change)
                      (get-text-property before 'qwen-companion-review-unified-source))
               (not (get-text-property start 'qwen-companion-review-unified-refined)))
      (cond
       ((vectorp words)
        (put-text-property start (1+ start) 'qwen-companion-review-unified-refined t)
        (cl-loop with removed = (qwen-companion-review-unified--run-start before)
                 for index from 0 below (length words) by 4
                 do (qwen-companion-review-unified--mark-words
                     removed (aref words index) (aref words (+ index 1))
                     'diff-refine-removed)
                 (qwen-companion-review-unified--mark-words
                  start (aref words (+ index 2)) (aref words (+ index 3))
                  'diff-refine-added)))
       ((and (null words)
             (< (- (qwen-companion-review-unified--run-end position)
                   (qwen-companion-review-unified--run-start before))
                qwen-companion-review-unified--refine-limit))
        (qwen-companion-review-unified--request-words change))))))

(defun qwen-companion-review-unified--request-words (change)
  "Have the words of CHANGE compared and its lines coloured again after that."
  (let* ((buffer (current-buffer))
         (difference (qwen-companion-review-unified--difference))
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
       (when (buffer-live-p buffer)
         (with-current-buffer buffer
           (qwen-companion-review-unified--recolour change)))))))

(defun qwen-companion-review-unified--recolour (change)
  "Have the lines of CHANGE coloured again if they are shown."
  (when-let* ((start (save-excursion (qwen-companion-review-unified--goto-change change)))
              (hunk (qwen-companion-review-unified--hunk-at start)))
    (with-silent-modifications
      (put-text-property start (cdr (qwen-companion-review-unified--bounds hunk))
                         'fontified nil))))

(defun qwen-companion-review-unified--mark-words (run from to face)
  "Show characters FROM to TO of the run of lines at RUN in FACE.
Both are offsets from 0 that do not count the signs before the lines."
  (when (< from to)
    (save-excursion
      (cl-flet ((place (offset)
                  (goto-char (1+ run))
                  (while (> offset (- (line-end-position) (point)))
                    (setq offset (- offset (- (line-end-position) (point)) 1))
                    (forward-line 1)
                    (forward-char 1))
                  (+ (point) offset)))
        (let ((overlay (make-overlay (place from) (place to))))
          (overlay-put overlay 'evaporate t)
          (overlay-put overlay 'face face))))))

;;; Following the texts

(defun qwen-companion-review-unified--update (proposal)
  "Show the hunks of PROPOSAL, comparing its texts first if necessary."
  (let ((difference (qwen-companion-review-unified--difference proposal)))
    (with-current-buffer (qwen-companion-review-windows-control proposal)
      (if (qwen-companion-hunks-up-to-date-p difference)
          (qwen-companion-review-unified--show-result t)
        (unless qwen-companion-review-unified--hunks
          (qwen-companion-review-unified--show-text "Comparing the texts..."))
        (setq qwen-companion-review-unified--state 'comparing)
        (qwen-companion-review-unified--update-status)
        (qwen-companion-hunks-compare
         difference
         (lambda (done)
           (when-let* ((buffer (qwen-companion-review-windows-control proposal))
                       ((eq 'unified (qwen-companion-proposal-style proposal))))
             (with-current-buffer buffer
               (qwen-companion-review-unified--show-result done)))))))))

(defun qwen-companion-review-unified--show-result (done)
  "Show the hunks if DONE is non-nil, else that comparing failed."
  (setq qwen-companion-review-unified--state (if done nil 'failed))
  (if done
      (qwen-companion-review-unified--draw)
    (qwen-companion-review-unified--show-text
     "The texts could not be compared: TAB shows both of them in Ediff, g tries again.")))

(defun qwen-companion-review-unified--follow-text (proposal on)
  "Compare the text of PROPOSAL after each edit if ON is non-nil.
With nil, stop doing that."
  (with-current-buffer (qwen-companion-proposal-buffer proposal)
    (when qwen-companion-review-unified--timer
      (cancel-timer qwen-companion-review-unified--timer)
      (setq qwen-companion-review-unified--timer nil))
    (if on
        (add-hook 'after-change-functions
                  #'qwen-companion-review-unified--text-changed nil t)
      (remove-hook 'after-change-functions
                   #'qwen-companion-review-unified--text-changed t))))

(defun qwen-companion-review-unified--text-changed (&rest _)
  "Schedule a comparison: the proposed text in this buffer was changed."
  (unless qwen-companion-review-unified--timer
    (setq qwen-companion-review-unified--timer
          (run-at-time qwen-companion-review-unified--compare-delay nil
                       #'qwen-companion-review-unified--compare-again
                       qwen-companion-proposal-current))))

(defun qwen-companion-review-unified--compare-again (proposal)
  "Compare the text of PROPOSAL again, unless only dropping has changed it."
  (when (qwen-companion-review-windows-control proposal)
    (with-current-buffer (qwen-companion-proposal-buffer proposal)
      (setq qwen-companion-review-unified--timer nil))
    (qwen-companion-review-refresh 'unified proposal)))

(defun qwen-companion-review-unified--revert (&rest _)
  "Compare the texts again."
  (setf (qwen-companion-hunks-requested-ticks (qwen-companion-review-unified--difference)) nil)
  (qwen-companion-review-unified--update qwen-companion-proposal-current))

;;; Front end

(cl-defmethod qwen-companion-review-show ((_style (eql 'unified)) proposal select)
  "Show PROPOSAL hunk by hunk; SELECT non-nil means to select the review."
  (let* ((frame (qwen-companion-review-windows-frame proposal))
         (selected (selected-window))
         (view (qwen-companion-review-windows-new-view proposal frame select))
         (buffer (or (qwen-companion-review-windows-view-control view)
                     (qwen-companion-review-unified--make-buffer proposal))))
    (setf (qwen-companion-proposal-view proposal) view
          (qwen-companion-review-windows-view-control view) buffer)
    (with-selected-frame frame
      (unless (get-buffer-window buffer frame)
        (qwen-companion-review-windows-show-buffer
         (qwen-companion-review-windows-make-room view)
         buffer)))
    (when (qwen-companion-proposal-unsaved-copy proposal)
      (qwen-companion-review-update-sides 'unified proposal))
    (qwen-companion-review-unified--follow-text proposal t)
    (qwen-companion-review-unified--update proposal)
    (qwen-companion-review-windows-select proposal select selected buffer)))

(cl-defmethod qwen-companion-review-hide ((_style (eql 'unified)) proposal)
  "Remove the review of PROPOSAL from the screen and restore the windows.
If the user has put other things on the screen meanwhile, they stay."
  (qwen-companion-review-windows-restore proposal)
  (qwen-companion-review-unified--follow-text proposal nil)
  (when-let* ((buffer (qwen-companion-review-windows-control proposal)))
    (kill-buffer buffer))
  (qwen-companion-review-windows-forget-view proposal))

(cl-defmethod qwen-companion-review-update-sides ((_style (eql 'unified)) proposal)
  "Show the copy of unsaved text of PROPOSAL below the hunks, or remove it."
  (let* ((yours (qwen-companion-proposal-unsaved-copy proposal))
         (window (get-buffer-window (qwen-companion-review-windows-control proposal) t))
         (third (and window
                     (cl-find-if (lambda (other)
                                   (window-parameter
                                    other 'qwen-companion-review-unified-third))
                                 (window-list (window-frame window) 'no-minibuffer)))))
    (cond
     ((null window))
     ((null yours)
      (when third
        (ignore-errors (delete-window third))))
     (t
      (setq third (or third (split-window window nil 'below)))
      (set-window-parameter third 'qwen-companion-review-unified-third t)
      (qwen-companion-review-windows-show-buffer third yours)))))

(cl-defmethod qwen-companion-review-refresh ((_style (eql 'unified)) proposal)
  "Compare the texts of PROPOSAL again if they are shown and have changed."
  (when (and (qwen-companion-review-windows-control proposal)
             (not (qwen-companion-hunks-up-to-date-p
                   (qwen-companion-review-unified--difference proposal))))
    (qwen-companion-review-unified--update proposal)))

(cl-defmethod qwen-companion-review-line-ends-changed ((_style (eql 'unified)) proposal)
  "Update how the line ends of PROPOSAL differ from those on disk."
  (when-let* ((buffer (qwen-companion-review-windows-control proposal)))
    (with-current-buffer buffer
      (unless qwen-companion-review-unified--state
        (let ((there (get-text-property (point) 'qwen-companion-review-unified-line-ends)))
          (qwen-companion-review-unified--draw)
          (when there
            (goto-char (text-property-any (point-min) (point-max)
                                          'qwen-companion-review-unified-line-ends t))
            (qwen-companion-review-unified--finish-drawing)))))))

;;; Commands

(defun qwen-companion-review-unified--ensure-ready ()
  "Signal a `user-error' unless the hunks are those of the present texts."
  (pcase qwen-companion-review-unified--state
    ('failed (user-error "The texts could not be compared; TAB shows them in Ediff"))
    ('comparing (user-error "Still comparing; try again in a moment"))
    (_ (unless (qwen-companion-hunks-up-to-date-p (qwen-companion-review-unified--difference))
         (qwen-companion-review-unified--update qwen-companion-proposal-current)
         (user-error "The text has been changed elsewhere; look at what is shown now")))))

(defun qwen-companion-review-unified--hunk-at-point ()
  "Return the hunk at point, or signal a `user-error'."
  (qwen-companion-review-unified--ensure-ready)
  (or (qwen-companion-review-unified--hunk-at (point))
      (user-error (if (get-text-property (point) 'qwen-companion-review-unified-stranded)
                      "The place of this hunk was edited, so it cannot be brought back; its text stays here"
                    "There is no hunk here"))))

(defun qwen-companion-unified-next (&optional count)
  "Go to the next hunk, or forward by COUNT hunks."
  (interactive "p")
  (dotimes (_ (abs (or count 1)))
    (let ((back (< (or count 1) 0)))
      (unless (or (qwen-companion-review-unified--goto-hunk (point) back)
                  (and (not back)
                       qwen-companion-review-unified--undrawn
                       (let ((place (point)))
                         (qwen-companion-review-unified--show-more)
                         (goto-char place)
                         (qwen-companion-review-unified--goto-hunk place nil))))
        (user-error "There is no %s hunk" (if back "previous" "next"))))))

(defun qwen-companion-unified-previous (&optional count)
  "Go to the previous hunk, or back by COUNT hunks."
  (interactive "p")
  (qwen-companion-unified-next (- (or count 1))))

(defun qwen-companion-review-unified--set-line-ends (as-on-disk)
  "If point is on the change of line ends, apply it or drop it.
AS-ON-DISK non-nil means to drop it.  Return nil if point is elsewhere."
  (when (get-text-property (point) 'qwen-companion-review-unified-line-ends)
    (when (eq as-on-disk (qwen-companion-proposal-as-on-disk
                          qwen-companion-proposal-current))
      (user-error (if as-on-disk "These are as on disk already; u takes the proposed ones"
                    "These are as proposed already; k keeps those on disk")))
    (qwen-companion-diff-toggle-line-ends qwen-companion-proposal-current)
    t))

(defun qwen-companion-unified-drop ()
  "Drop the hunk at point: accepting will leave it out.
\\<qwen-companion-unified-mode-map>\\[qwen-companion-unified-restore] restores it."
  (interactive)
  (unless (qwen-companion-review-unified--set-line-ends t)
    (let ((hunk (qwen-companion-review-unified--hunk-at-point)))
      (when (qwen-companion-hunks-dropped-p hunk)
        (user-error "This hunk is dropped already; u brings it back"))
      (qwen-companion-hunks-drop (qwen-companion-review-unified--difference) hunk)
      (qwen-companion-review-unified--show-changed hunk))))

(defun qwen-companion-unified-restore ()
  "Restore the hunk at point, which is dropped."
  (interactive)
  (unless (qwen-companion-review-unified--set-line-ends nil)
    (let ((hunk (qwen-companion-review-unified--hunk-at-point)))
      (unless (qwen-companion-hunks-dropped-p hunk)
        (user-error "This hunk is not dropped; k drops it"))
      (qwen-companion-hunks-restore (qwen-companion-review-unified--difference) hunk)
      (qwen-companion-review-unified--show-changed hunk))))

(defun qwen-companion-review-unified--show-changed (hunk)
  "Update the display after HUNK was dropped or restored."
  (if (qwen-companion-hunks-up-to-date-p (qwen-companion-review-unified--difference))
      (qwen-companion-review-unified--redraw hunk (list hunk))
    (qwen-companion-review-unified--update qwen-companion-proposal-current))
  (run-hooks 'qwen-companion-proposal-changed-hook))

(defun qwen-companion-unified-split ()
  "Split the hunk before the line at point.
On an unchanged line between two changes, split between these."
  (interactive)
  (let* ((hunk (qwen-companion-review-unified--hunk-at-point))
         (changes (qwen-companion-hunks-hunk-changes hunk))
         (difference (qwen-companion-review-unified--difference))
         (begin
          (pcase (qwen-companion-review-unified--source-at (point))
            (`(context ,line . ,index)
             (cl-find-if (lambda (change)
                           (>= (qwen-companion-hunks-change-old change)
                               (+ line index)))
                         changes))
            (`(,kind ,change . ,index)
             (let ((removed (if (eq kind 'removed)
                                index
                              (qwen-companion-hunks-change-old-count change)))
                   (added (if (eq kind 'removed) 0 index)))
               (unless (and (= 0 removed added) (eq change (car changes)))
                 (if (= 0 removed added)
                     change
                   (qwen-companion-hunks-split difference change
                                               removed added))))))))
    (when (or (null begin) (eq begin (car changes)))
      (user-error "Nothing to split off: go to a line after the first change of the hunk"))
    (setf (qwen-companion-hunks-change-cut begin) t)
    (qwen-companion-review-unified--split-hunk hunk begin)))

(defun qwen-companion-review-unified--split-hunk (hunk begin)
  "Split the display of HUNK before the change BEGIN, which may be new."
  (let* ((difference (qwen-companion-review-unified--difference))
         (changes (qwen-companion-hunks-hunk-changes hunk))
         (all (if (memq begin changes)
                  changes
                (let ((from (memq (car changes)
                                  (qwen-companion-hunks-changes difference))))
                  (cl-subseq from 0 (1+ (length changes))))))
         (tail (memq begin all))
         (gap (let ((previous (car (last (cl-ldiff all tail)))))
                (- (qwen-companion-hunks-change-old begin)
                   (qwen-companion-hunks-change-end previous))))
         (after (min qwen-companion-review-unified--context (/ (1+ gap) 2)))
         (first (make-qwen-companion-hunks-hunk
                 :changes (cl-ldiff all tail)
                 :before (qwen-companion-hunks-hunk-before hunk)
                 :after after
                 :whole (qwen-companion-hunks-hunk-whole hunk)))
         (second (make-qwen-companion-hunks-hunk
                  :changes (cl-copy-list tail)
                  :before (min qwen-companion-review-unified--context (- gap after))
                  :after (qwen-companion-hunks-hunk-after hunk)
                  :whole (qwen-companion-hunks-hunk-whole hunk)))
         (cell (memq hunk qwen-companion-review-unified--hunks)))
    (setcar cell first)
    (setcdr cell (cons second (cdr cell)))
    (qwen-companion-review-unified--redraw hunk (list first second))
    (goto-char (car (qwen-companion-review-unified--bounds second)))
    (qwen-companion-review-unified--finish-drawing)))

(defun qwen-companion-unified-toggle-space ()
  "Hide hunks that change white space only, or show them again.
Hidden hunks stay kept or dropped as they are."
  (interactive)
  (qwen-companion-review-unified--ensure-ready)
  (setq qwen-companion-review-unified--ignore-space
        (not qwen-companion-review-unified--ignore-space))
  (qwen-companion-review-unified--draw))

(defun qwen-companion-unified-more-context (&optional count)
  "Show COUNT more lines of context around the hunks, one by default.
Hunks that touch then are joined, except where you have split them."
  (interactive "p")
  (qwen-companion-review-unified--ensure-ready)
  (setq qwen-companion-review-unified--context
        (max 0 (+ qwen-companion-review-unified--context (or count 1))))
  (qwen-companion-review-unified--draw)
  (message "%d lines of context" qwen-companion-review-unified--context))

(defun qwen-companion-unified-less-context (&optional count)
  "Show COUNT fewer lines of context around the hunks, one by default.
Without context, each change is a hunk."
  (interactive "p")
  (qwen-companion-unified-more-context (- (or count 1))))

(defun qwen-companion-unified-accept ()
  "Accept the proposal as shown, without the dropped hunks."
  (interactive)
  (unless (eq qwen-companion-review-unified--state 'failed)
    (qwen-companion-review-unified--ensure-ready))
  (qwen-companion-diff-accept qwen-companion-proposal-current))

(defun qwen-companion-unified-visit ()
  "Visit the line at point in the file, in another window.
If there is no file yet, go to the line in the proposed text.  On a
button, push it."
  (interactive)
  (if-let* ((press (get-text-property (point) 'qwen-companion-review-unified-action)))
      (funcall press)
    (let ((lines (qwen-companion-review-unified--lines-at-point))
          (path (qwen-companion-proposal-path qwen-companion-proposal-current)))
      (if (file-exists-p path)
          (pop-to-buffer (find-file-noselect path))
        (pop-to-buffer (qwen-companion-proposal-buffer
                        qwen-companion-proposal-current)))
      (widen)
      (qwen-companion-hunks-goto
       (if buffer-file-name (car lines) (cdr lines))))))

(defun qwen-companion-review-unified--lines-at-point ()
  "Return the lines at point on disk and in the proposal: (OLD . NEW)."
  (qwen-companion-review-unified--ensure-ready)
  (pcase (qwen-companion-review-unified--source-at (point))
    (`(context ,line . ,index)
     (let ((old (+ line index)))
       (cons old (+ old (qwen-companion-review-unified--line-shift old)))))
    (`(removed ,change . ,index)
     (cons (+ (qwen-companion-hunks-change-old change) index)
           (qwen-companion-hunks-change-new change)))
    (`(,kind ,change . ,index)
     (cons (qwen-companion-hunks-change-old change)
           (+ (qwen-companion-hunks-change-new change)
              (if (eq kind 'added) index 0))))
    (_ (if-let* ((hunk (qwen-companion-review-unified--hunk-at (point))))
           (let ((change (car (qwen-companion-hunks-hunk-changes hunk))))
             (cons (qwen-companion-hunks-change-old change)
                   (qwen-companion-hunks-change-new change)))
         (cons 1 1)))))

(defun qwen-companion-review-unified--line-shift (line)
  "Return the difference of line numbers of the unchanged LINE on disk.
Add it to get the line's number in the proposal."
  (cl-loop for change in (qwen-companion-hunks-changes
                          (qwen-companion-review-unified--difference))
           while (<= (qwen-companion-hunks-change-end change) line)
           sum (- (qwen-companion-hunks-change-new-count change)
                  (qwen-companion-hunks-change-old-count change))))

(defun qwen-companion-unified-edit (&optional whole)
  "Edit the proposed lines of the hunk at point in a buffer of their own.
With a prefix argument WHOLE, or outside of hunks, edit all of the
proposed text."
  (interactive "P")
  (qwen-companion-review-unified--ensure-ready)
  (let* ((proposal qwen-companion-proposal-current)
         (hunk (and (not whole) (qwen-companion-review-unified--hunk-at (point)))))
    (cond
     ((null hunk)
      (qwen-companion-review-edit proposal nil nil
                           (cdr (qwen-companion-review-unified--lines-at-point))))
     ((qwen-companion-hunks-dropped-p hunk)
      (user-error "This hunk is dropped; u brings it back"))
     (t
      (pcase-let ((`(,_ ,_ ,line ,count) (qwen-companion-review-unified--extent hunk)))
        (qwen-companion-review-edit proposal line count))))))

(provide 'qwen-companion-review-unified)
;;; qwen-companion-review-unified.el ends here
