;;; qwen-companion-hunks.el --- What of a proposal is kept and dropped  -*- lexical-binding: t; -*-

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

;; How the proposed text differs from the one on disk, as a list of changes
;; that can be dropped, brought back and split.  The buffer of the proposal
;; is the truth: dropping a change gives its lines the text on disk, and the
;; proposed lines are remembered here.  So whatever shows or accepts the
;; proposal needs to know nothing of this file.
;;
;; The texts are compared outside of Emacs, and once: what is dropped here is
;; accounted for by counting lines.  Only when one of the texts was changed
;; by others they are compared again, and the dropped changes are found
;; again by the side that has not changed.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-merge)

(cl-defstruct (qwen-companion-hunks-change (:copier nil))
  "A place where the proposed text differs, or did before it was dropped.
OLD-COUNT lines from OLD on, on disk, are NEW-COUNT lines from NEW on in
the proposal as it is now.  Lines count from 1; where a count is 0 the
line is the one before which others would be.  TEXT is nil, or the
proposed lines when they were dropped, TEXT-COUNT of them; then the
lines in the proposal are those of the disk.  CUT is non-nil when the
user has split here: it begins a hunk, whatever is near.  WORDS tells
which words differ, see `qwen-companion-merge-result-edits', `asked'
while that is being computed."
  old old-count new new-count text text-count cut words)

(cl-defstruct (qwen-companion-hunks-hunk (:copier nil))
  "Changes that are shown, dropped and brought back together.
BEFORE and AFTER are the lines of context around CHANGES.  WHOLE is
non-nil when its lines are shown however many they are, HIDDEN when it
is not shown."
  changes before after whole hidden)

(cl-defstruct (qwen-companion-hunks (:copier nil))
  "How the text in the buffer NEW, a proposal, differs from that in OLD.
CHANGES are in order, TICKS tells of which states of both buffers, nil
before they were compared.  STRANDED are dropped changes that cannot be
brought back, because the place where they were has changed.  CLEAN is
non-nil when nothing but dropping has changed the proposal, so that it
is unchanged when all is brought back.  ASKED are the ticks of which a
comparison is under way, if any."
  old new changes ticks stranded clean requested-ticks)

;;; Lines

(defvar-local qwen-companion-hunks--line-cache nil
  "A line and where it begins: (TICK LINE POSITION), in the text at TICK.
The lines of a long text are not counted from its start each time.")

(defun qwen-companion-hunks-goto (line)
  "Go to the start of LINE in the current buffer, or to its end.
The buffer is not narrowed."
  (pcase-let ((`(,tick ,known ,position) qwen-companion-hunks--line-cache))
    (unless (and (eql tick (buffer-chars-modified-tick))
                 ;; Nearer than the start.
                 (< (abs (- line known)) line))
      (setq known 1 position (point-min)))
    (goto-char position)
    (when (and (zerop (forward-line (- line known))) (bolp))
      (qwen-companion-hunks--cache-line line))))

(defun qwen-companion-hunks--cache-line (line)
  "Remember that LINE begins at point."
  (setq qwen-companion-hunks--line-cache
        (list (buffer-chars-modified-tick) line (point))))

(defun qwen-companion-hunks--forward-lines (count)
  "Go COUNT lines forward; none means to stay, also behind an open last line."
  (unless (zerop count)
    (forward-line count)))

(defun qwen-companion-hunks-bounds (buffer line count)
  "Return the positions (START . END) of COUNT lines from LINE on in BUFFER."
  (with-current-buffer buffer
    (save-excursion
      (save-restriction
        (widen)
        (qwen-companion-hunks-goto line)
        (let ((start (point)))
          (qwen-companion-hunks--forward-lines count)
          (cons start (point)))))))

(defun qwen-companion-hunks-lines (buffer line count)
  "Return the text of COUNT lines from LINE on in BUFFER."
  (pcase-let ((`(,start . ,end)
               (qwen-companion-hunks-bounds buffer line count)))
    (with-current-buffer buffer
      (save-restriction
        (widen)
        (buffer-substring-no-properties start end)))))

(defun qwen-companion-hunks-count-lines (text)
  "Return how many lines TEXT has; a last one may lack its line feed."
  (+ (cl-count ?\n text)
     (if (or (string-empty-p text) (string-suffix-p "\n" text)) 0 1)))

(defun qwen-companion-hunks-line-count (buffer)
  "Return how many lines BUFFER has; a last one may lack its line feed."
  (with-current-buffer buffer
    (save-restriction
      (widen)
      (- (line-number-at-pos (point-max) t)
         (if (or (= (point-min) (point-max)) (eq ?\n (char-before (point-max))))
             1
           0)))))

(defun qwen-companion-hunks--replace (buffer line count text)
  "Replace COUNT lines from LINE on in BUFFER by TEXT.
Return (LINES . MENDED): the lines that were there, and whether a line
feed had to be added so that no two lines became one."
  (with-current-buffer buffer
    (save-excursion
      (save-restriction
        (widen)
        (qwen-companion-hunks-goto line)
        (let ((start (point)))
          (qwen-companion-hunks--forward-lines count)
          (let ((before (and (not (string-empty-p text))
                             (save-excursion (goto-char start) (not (bolp)))))
                (after (and (qwen-companion-hunks-unterminated-p text) (not (eobp)))))
            (prog1 (cons (buffer-substring-no-properties start (point))
                         (or before after))
              (undo-boundary)
              (delete-region start (point))
              (insert (if before "\n" "") text (if after "\n" ""))
              (undo-boundary)
              (goto-char start)
              (when (bolp)
                (qwen-companion-hunks--cache-line line)))))))))

;;; Comparing

(defun qwen-companion-hunks--current-ticks (difference)
  "Return a value that is another one when a text of DIFFERENCE is."
  (cons (buffer-chars-modified-tick (qwen-companion-hunks-old difference))
        (buffer-chars-modified-tick (qwen-companion-hunks-new difference))))

(defun qwen-companion-hunks-up-to-date-p (difference)
  "Return non-nil when DIFFERENCE is that of the texts as they are now."
  (equal (qwen-companion-hunks-ticks difference)
         (qwen-companion-hunks--current-ticks difference)))

(defun qwen-companion-hunks-compare (difference callback)
  "Bring DIFFERENCE up to date; return at once.
CALLBACK is called, unless a buffer has been killed meanwhile, with
non-nil when that is done, with nil when the texts cannot be compared.
Nothing more is done when that is under way already."
  (let ((now (qwen-companion-hunks--current-ticks difference)))
    (unless (equal now (qwen-companion-hunks-requested-ticks difference))
      (setf (qwen-companion-hunks-requested-ticks difference) now)
      (qwen-companion-merge-compare
       (qwen-companion-hunks-old difference)
       (qwen-companion-hunks-new difference)
       (lambda (found)
         (qwen-companion-hunks--compared difference now found callback))))))

(defun qwen-companion-hunks--compared (difference ticks found callback)
  "Bring DIFFERENCE up to date with FOUND, the answer of TICKS.
CALLBACK is as in `qwen-companion-hunks-compare'."
  (when (and (equal ticks (qwen-companion-hunks-requested-ticks difference))
             (buffer-live-p (qwen-companion-hunks-old difference))
             (buffer-live-p (qwen-companion-hunks-new difference)))
    (setf (qwen-companion-hunks-requested-ticks difference) nil)
    (cond
     ((eq found 'failed) (funcall callback nil))
     ((not (equal ticks (qwen-companion-hunks--current-ticks difference)))
      (qwen-companion-hunks-compare difference callback))
     (t
      (unless (and (qwen-companion-hunks-clean difference)
                   (equal (cdr ticks)
                          (cdr (qwen-companion-hunks-ticks difference))))
        (setf (qwen-companion-hunks-clean difference)
              (not (buffer-modified-p (qwen-companion-hunks-new difference)))))
      (qwen-companion-hunks--update difference found)
      (setf (qwen-companion-hunks-ticks difference) ticks)
      (funcall callback t)))))

(defun qwen-companion-hunks--update (difference found)
  "Bring DIFFERENCE up to date with FOUND, see `qwen-companion-merge-compare'.
What was dropped before stays so, and what was split where it can."
  (let* ((before (qwen-companion-hunks-ticks difference))
         (now (qwen-companion-hunks--current-ticks difference))
         (old-same (equal (car before) (car now)))
         (new-same (equal (cdr before) (cdr now)))
         (known (qwen-companion-hunks-changes difference))
         (dropped (cl-remove-if-not #'qwen-companion-hunks-change-text known))
         (kept (qwen-companion-hunks--reapply-splits
                found (and old-same
                           (cl-remove-if #'qwen-companion-hunks-change-text
                                         known)))))
    (setf (qwen-companion-hunks-changes difference)
          ;; Of what was found the order is right.
          (if dropped
              (qwen-companion-hunks--merge
               difference kept dropped
               (qwen-companion-hunks--after-insertion known)
               (cond (new-same 'new) (old-same 'old)))
            kept))))

(defun qwen-companion-hunks--reapply-splits (found known)
  "Return FOUND as a list of structs, divided where the ones KNOWN are.
Any division into runs of lines is as good as another, so the numbers
of lines decide."
  (let (changes)
    (pcase-dolist (`(,old ,old-count ,new ,new-count) found)
      (while (and known (< (qwen-companion-hunks-change-old (car known)) old))
        (pop known))
      (let ((old-end (+ old old-count)) (new-end (+ new new-count))
            (rest known) (old-at old) (new-at new) parts)
        (while (and rest
                    (= old-at (qwen-companion-hunks-change-old (car rest)))
                    (<= (+ old-at (qwen-companion-hunks-change-old-count (car rest)))
                        old-end))
          (let* ((part (pop rest))
                 (old-size (qwen-companion-hunks-change-old-count part))
                 (new-size (qwen-companion-hunks-change-new-count part)))
            (push (make-qwen-companion-hunks-change
                   :old old-at :old-count old-size
                   :new new-at :new-count new-size
                   :cut (qwen-companion-hunks-change-cut part))
                  parts)
            (setq old-at (+ old-at old-size)
                  new-at (+ new-at new-size))))
        (setq changes
              (if (and parts (= old-at old-end) (= new-at new-end))
                  (nconc parts changes)
                (cons (make-qwen-companion-hunks-change
                       :old old :old-count old-count
                       :new new :new-count new-count)
                      changes)))))
    (nreverse changes)))

(defun qwen-companion-hunks--after-insertion (known)
  "Return those dropped of KNOWN that follow an insertion at the same place."
  (let (behind previous)
    (dolist (change known behind)
      (if (qwen-companion-hunks-change-text change)
          (when (and previous
                     (zerop (qwen-companion-hunks-change-old-count previous))
                     (= (qwen-companion-hunks-change-old previous)
                        (qwen-companion-hunks-change-old change)))
            (push change behind))
        (setq previous change)))))

(defun qwen-companion-hunks--merge (difference kept dropped behind side)
  "Return a list of all KEPT and DROPPED in order; strand what has no place.
SIDE of DIFFERENCE, `old' or `new', has not changed since DROPPED was
right there, nil means that both have.  BEHIND are those of DROPPED that
come after an insertion at the same place."
  (cl-flet ((at (change) (if (eq side 'new)
                             (qwen-companion-hunks-change-new change)
                           (qwen-companion-hunks-change-old change)))
            (size (change) (if (eq side 'new)
                               (qwen-companion-hunks-change-new-count change)
                             (qwen-companion-hunks-change-old-count change)))
            (rank (change) (cond ((memq change behind) 2)
                                 ((qwen-companion-hunks-change-text change) 0)
                                 (t 1))))
    (let ((rest kept) fitting)
      (dolist (change dropped)
        (let ((start (at change)) (end (+ (at change) (size change))) back)
          (while (and rest (<= (+ (at (car rest)) (size (car rest))) start))
            (setq back (or back (qwen-companion-hunks--restored-p
                                 difference change (car rest))))
            (pop rest))
          (cond
           ((or back
                (and rest (qwen-companion-hunks--restored-p
                           difference change (car rest)))))
           ((and side
                 (not (and rest
                           (< (at (car rest)) end)
                           (< start (+ (at (car rest)) (size (car rest)))))))
            (push change fitting))
           (t (push change (qwen-companion-hunks-stranded difference))))))
      (qwen-companion-hunks--recompute-positions
       (sort (append kept (nreverse fitting))
             (lambda (a b)
               (cond ((/= (at a) (at b)) (< (at a) (at b)))
                     ((not (eq (zerop (size a)) (zerop (size b))))
                      (zerop (size a)))
                     (t (< (rank a) (rank b))))))
       side))))

(defun qwen-companion-hunks--restored-p (difference change other)
  "Return non-nil when OTHER is what CHANGE, dropped, was before.
Then it was brought back by other means, such as undo; see DIFFERENCE."
  (and (= (qwen-companion-hunks-change-old change)
          (qwen-companion-hunks-change-old other))
       (= (qwen-companion-hunks-change-old-count change)
          (qwen-companion-hunks-change-old-count other))
       (equal (qwen-companion-hunks-change-text change)
              (qwen-companion-hunks-proposed-lines difference other))))

(defun qwen-companion-hunks--recompute-positions (all side)
  "Return ALL, each with its place on the other side than SIDE counted anew.
That is needed for those that are dropped only."
  (let ((delta 0))
    (dolist (change all all)
      (when (qwen-companion-hunks-change-text change)
        (if (eq side 'new)
            (setf (qwen-companion-hunks-change-old change)
                  (- (qwen-companion-hunks-change-new change) delta))
          (setf (qwen-companion-hunks-change-new change)
                (+ (qwen-companion-hunks-change-old change) delta))))
      (cl-incf delta (- (qwen-companion-hunks-change-new-count change)
                        (qwen-companion-hunks-change-old-count change))))))

(defun qwen-companion-hunks-proposed-lines (difference change &optional limit)
  "Return the proposed lines of CHANGE in DIFFERENCE, dropped or not.
LIMIT, if non-nil, is the number of lines that are enough."
  (if-let* ((text (qwen-companion-hunks-change-text change)))
      (if limit
          (qwen-companion-hunks--first-lines text limit)
        text)
    (qwen-companion-hunks--some-lines
     (qwen-companion-hunks-new difference)
     (qwen-companion-hunks-change-new change)
     (qwen-companion-hunks-change-new-count change)
     limit)))

(defun qwen-companion-hunks--some-lines (buffer line count limit)
  "Return the text of COUNT lines from LINE on in BUFFER, or of the first LIMIT."
  (qwen-companion-hunks-lines buffer line (if limit (min count limit) count)))

(defun qwen-companion-hunks-proposed-count (change)
  "Return how many lines CHANGE proposes, dropped or not."
  (if (qwen-companion-hunks-change-text change)
      (qwen-companion-hunks-change-text-count change)
    (qwen-companion-hunks-change-new-count change)))

(defun qwen-companion-hunks-disk-lines (difference change &optional limit)
  "Return the lines on disk in the place of CHANGE of DIFFERENCE.
LIMIT, if non-nil, is the number of lines that are enough."
  (qwen-companion-hunks--some-lines
   (qwen-companion-hunks-old difference)
   (qwen-companion-hunks-change-old change)
   (qwen-companion-hunks-change-old-count change)
   limit))

;;; Hunks

(defun qwen-companion-hunks-group (all context size)
  "Return ALL, in order, as hunks with up to CONTEXT lines around them.
SIZE is the number of lines on disk.  Changes are in one hunk when their
contexts would touch; with no context, each is one of its own."
  (let (hunks)
    (dolist (change all)
      (let* ((hunk (car hunks))
             (previous (car (and hunk (qwen-companion-hunks-hunk-changes hunk))))
             (gap (- (qwen-companion-hunks-change-old change)
                     (if previous (qwen-companion-hunks-change-end previous) 1))))
        (if (and previous
                 (> context 0)
                 (<= gap (* 2 context))
                 (not (qwen-companion-hunks-change-cut change))
                 (eq (null (qwen-companion-hunks-change-text change))
                     (null (qwen-companion-hunks-change-text previous))))
            (push change (qwen-companion-hunks-hunk-changes hunk))
          (let ((after (min context (if previous (/ (1+ gap) 2) 0))))
            (when hunk
              (setf (qwen-companion-hunks-hunk-after hunk) after))
            (push (make-qwen-companion-hunks-hunk
                   :changes (list change)
                   :before (min context (- gap after)))
                  hunks)))))
    (when hunks
      (setf (qwen-companion-hunks-hunk-after (car hunks))
            (min context
                 (- (1+ size)
                    (qwen-companion-hunks-change-end
                     (car (qwen-companion-hunks-hunk-changes (car hunks))))))))
    (dolist (hunk hunks)
      (cl-callf nreverse (qwen-companion-hunks-hunk-changes hunk)))
    (nreverse hunks)))

(defun qwen-companion-hunks-change-end (change)
  "Return the line on disk behind CHANGE."
  (+ (qwen-companion-hunks-change-old change)
     (qwen-companion-hunks-change-old-count change)))

(defun qwen-companion-hunks-dropped-p (hunk)
  "Return non-nil when HUNK is dropped."
  (and (qwen-companion-hunks-change-text
        (car (qwen-companion-hunks-hunk-changes hunk)))
       t))

(defconst qwen-companion-hunks--space-limit 100000
  "Characters above which a change is taken for more than white space.")

(defun qwen-companion-hunks-only-space-p (difference hunk)
  "Return non-nil when HUNK is about white space only.
HUNK belongs to DIFFERENCE."
  (cl-every
   (lambda (change)
     (let ((old (qwen-companion-hunks-disk-lines difference change))
           (new (qwen-companion-hunks-proposed-lines difference change)))
       (and (< (+ (length old) (length new)) qwen-companion-hunks--space-limit)
            (equal (replace-regexp-in-string "[[:space:]]+" "" old t t)
                   (replace-regexp-in-string "[[:space:]]+" "" new t t)))))
   (qwen-companion-hunks-hunk-changes hunk)))

;;; Dropping and bringing back

(defun qwen-companion-hunks-drop (difference hunk)
  "Give the lines of HUNK in the proposal the text on disk.
DIFFERENCE, to which it belongs, must be up to date; it no longer is
when line feeds had to be added."
  (qwen-companion-hunks--apply-and-shift
   difference hunk
   (lambda (change)
     (pcase-let ((`(,lines . ,mended)
                  (qwen-companion-hunks--replace
                   (qwen-companion-hunks-new difference)
                   (qwen-companion-hunks-change-new change)
                   (qwen-companion-hunks-change-new-count change)
                   (qwen-companion-hunks-disk-lines difference change))))
       (setf (qwen-companion-hunks-change-text change) lines
             (qwen-companion-hunks-change-text-count change)
             (qwen-companion-hunks-change-new-count change)
             (qwen-companion-hunks-change-new-count change)
             (qwen-companion-hunks-change-old-count change))
       mended))))

(defun qwen-companion-hunks-restore (difference hunk)
  "Give the lines of HUNK, which is dropped, the proposed text again.
DIFFERENCE, to which it belongs, must be up to date; it no longer is
when line feeds had to be added."
  (qwen-companion-hunks--apply-and-shift
   difference hunk
   (lambda (change)
     (prog1 (cdr (qwen-companion-hunks--replace
                  (qwen-companion-hunks-new difference)
                  (qwen-companion-hunks-change-new change)
                  (qwen-companion-hunks-change-new-count change)
                  (qwen-companion-hunks-change-text change)))
       (setf (qwen-companion-hunks-change-text change) nil
             (qwen-companion-hunks-change-new-count change)
             (qwen-companion-hunks-change-text-count change))))))

(defun qwen-companion-hunks--apply-and-shift (difference hunk function)
  "Call FUNCTION with each change of HUNK and account for what is moved.
It returns non-nil when the text is not just that of the change now.
DIFFERENCE is that to which HUNK belongs."
  (let ((changes (qwen-companion-hunks-hunk-changes hunk))
        (delta 0)
        mended)
    (dolist (change (qwen-companion-hunks-changes difference))
      (cl-incf (qwen-companion-hunks-change-new change) delta)
      (when (eq change (car changes))
        (pop changes)
        (let ((count (qwen-companion-hunks-change-new-count change)))
          (setq mended (or (funcall function change) mended))
          (cl-incf delta (- (qwen-companion-hunks-change-new-count change)
                            count)))))
    (pcase-let ((`(,old . ,new) (qwen-companion-hunks--current-ticks difference)))
      (setf (qwen-companion-hunks-ticks difference)
            ;; To be compared again: what is dropped is found by the disk.
            (cons old (if mended nil new))))
    (cond
     (mended
      (setf (qwen-companion-hunks-clean difference) nil))
     ((and (qwen-companion-hunks-clean difference)
           (cl-notany #'qwen-companion-hunks-change-text
                      (qwen-companion-hunks-changes difference)))
      (with-current-buffer (qwen-companion-hunks-new difference)
        (set-buffer-modified-p nil))))))

;;; Splitting

(defun qwen-companion-hunks-split (difference change removed added)
  "Split CHANGE after REMOVED of its lines on disk and ADDED proposed ones.
What comes before must not be nothing: if that is so, the change itself
is made to begin a hunk.  DIFFERENCE is that to which it belongs.
Signal a `user-error' where the parts could not be kept and dropped each
by itself."
  (if (= 0 removed added)
      (setf (qwen-companion-hunks-change-cut change) t)
    (let* ((text (qwen-companion-hunks-change-text change))
           (new (qwen-companion-hunks-proposed-lines difference change))
           (old (qwen-companion-hunks-disk-lines difference change))
           (head (qwen-companion-hunks--first-lines new added))
           (first (qwen-companion-hunks--first-lines old removed))
           (tail (substring new (length head))))
      ;; The parts of a text are put together in any choice.
      (when (or (qwen-companion-hunks-unterminated-p head)
                (qwen-companion-hunks-unterminated-p first))
        (user-error "Cannot split here: a line above has no newline at its end, so nothing can follow it"))
      (let ((part (make-qwen-companion-hunks-change
                   :old (+ (qwen-companion-hunks-change-old change) removed)
                   :old-count (- (qwen-companion-hunks-change-old-count change)
                                 removed)
                   :new (+ (qwen-companion-hunks-change-new change)
                           (if text removed added))
                   :new-count (- (qwen-companion-hunks-change-new-count change)
                                 (if text removed added))
                   :text (and text tail)
                   :text-count (- (qwen-companion-hunks-proposed-count change)
                                  added)
                   :cut t))
            (cell (memq change (qwen-companion-hunks-changes difference))))
        (setf (qwen-companion-hunks-change-words change) nil
              (qwen-companion-hunks-change-old-count change) removed
              (qwen-companion-hunks-change-new-count change)
              (if text removed added)
              (qwen-companion-hunks-change-text change) (and text head)
              (qwen-companion-hunks-change-text-count change) added)
        (setcdr cell (cons part (cdr cell)))
        part))))

(defun qwen-companion-hunks--first-lines (text count)
  "Return the first COUNT lines of TEXT."
  (let ((end 0))
    (dotimes (_ count)
      (setq end (if-let* ((next (string-search "\n" text end)))
                    (1+ next)
                  (length text))))
    (substring text 0 end)))

(defun qwen-companion-hunks-unterminated-p (text)
  "Return non-nil when the last line of TEXT lacks its line feed."
  (not (or (string-empty-p text) (string-suffix-p "\n" text))))

(provide 'qwen-companion-hunks)
;;; qwen-companion-hunks.el ends here
