;;; qwen-companion-hunks.el --- Drop, restore and split changes of a proposal  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The changes by which a proposal differs from the text on disk, as a list;
;; each can be dropped, restored and split.  The buffer of the proposal is
;; authoritative: dropping a change replaces its lines there by those on
;; disk, and remembers the proposed lines here.  So showing or accepting
;; the proposal does not depend on this file.
;;
;; The Python process compares the texts, and only once: dropping shifts the
;; line numbers of the changes that follow.  When something else changes one
;; of the texts they are compared again, and the dropped changes are located
;; on the side that has not changed.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-merge)

(cl-defstruct (qwen-companion-hunks-change (:copier nil))
  "A run of lines that the proposal changes, dropped or not.
OLD-COUNT lines from line OLD on disk correspond to NEW-COUNT lines from
line NEW in the current proposal.  Lines count from 1; if a count is 0,
insertion is before that line.  TEXT is nil, or for a dropped change the
TEXT-COUNT proposed lines; the proposal then has the lines on disk.  CUT
is non-nil when the user has split a hunk before this change.  WORDS are
the words that differ, see `qwen-companion-merge-result-edits', or
`asked' while they are being computed."
  old old-count new new-count text text-count cut words)

(cl-defstruct (qwen-companion-hunks-hunk (:copier nil))
  "Changes that are shown, dropped and restored together.
BEFORE and AFTER are the numbers of context lines around CHANGES.  WHOLE
is non-nil to show its lines however many they are, HIDDEN not to show
it."
  changes before after whole hidden)

(cl-defstruct (qwen-companion-hunks (:copier nil))
  "The difference between the buffers OLD and NEW; NEW has the proposal.
CHANGES is a list in order.  TICKS identifies the compared states of both
buffers, or is nil.  STRANDED are dropped changes that cannot be restored
because the text around them has changed.  CLEAN is non-nil while only
dropping has changed the proposal, so that restoring all changes makes it
unmodified.  REQUESTED-TICKS are the ticks of a comparison in progress,
or nil.  STEPS are the user's steps, newest first, see
`qwen-companion-hunks-record'."
  old new changes ticks stranded clean requested-ticks steps)

;;; Lines

(defconst qwen-companion-hunks--long-distance 1000
  "Distance in lines above which the nearest known line start is searched.")

(defvar-local qwen-companion-hunks--line-cache nil
  "Starts of lines in the text at TICK: (TICK LAST . MARKS), or nil.
LAST and each of MARKS is (LINE . POSITION).  LAST was found last; the
marks are far apart.  They save counting the lines of a long text from
its start each time.")

(defun qwen-companion-hunks-goto (line)
  "Go to the start of LINE in the current buffer, or to the end.
The buffer must not be narrowed."
  (unless (eql (car qwen-companion-hunks--line-cache) (buffer-chars-modified-tick))
    (let ((first (cons 1 (point-min))))
      (setq qwen-companion-hunks--line-cache
            (list (buffer-chars-modified-tick) first first))))
  (let* ((starts (cdr qwen-companion-hunks--line-cache))
         (known (car starts))
         (lines (abs (- line (car known)))))
    (when (< qwen-companion-hunks--long-distance lines)
      (dolist (mark (cdr starts))
        (when (< (abs (- line (car mark))) lines)
          (setq known mark
                lines (abs (- line (car mark)))))))
    (goto-char (cdr known))
    ;; With that cache Emacs notes each newline on the way, which takes ten
    ;; times as long as looking for them.
    (when (and (zerop (let ((cache-long-scans nil)) (forward-line (- line (car known)))))
               (bolp))
      (setcar starts (cons line (point)))
      (when (< qwen-companion-hunks--long-distance lines)
        (push (car starts) (cdr starts))))))

(defun qwen-companion-hunks--text-changed (line)
  "Note that the text from point on, the start of LINE, has just changed."
  (setq qwen-companion-hunks--line-cache
        `(,(buffer-chars-modified-tick)
          ,(cons line (point))
          ,@(cl-remove line (cddr qwen-companion-hunks--line-cache)
                       :test #'< :key #'car))))

(defun qwen-companion-hunks--forward-lines (count)
  "Move COUNT lines forward.
With 0, stay even after a last line without a newline."
  (unless (zerop count)
    (forward-line count)))

(defun qwen-companion-hunks-bounds (buffer line count)
  "Return the positions (START . END) of COUNT lines from LINE in BUFFER."
  (with-current-buffer buffer
    (qwen-companion-buffers-widened
      (qwen-companion-hunks-goto line)
      (let ((start (point)))
        (qwen-companion-hunks--forward-lines count)
        (cons start (point))))))

(defun qwen-companion-hunks-lines (buffer line count)
  "Return the text of COUNT lines from LINE in BUFFER."
  (pcase-let ((`(,start . ,end)
               (qwen-companion-hunks-bounds buffer line count)))
    (with-current-buffer buffer
      (save-restriction
        (widen)
        (buffer-substring-no-properties start end)))))

(defun qwen-companion-hunks-line-count (buffer)
  "Return the number of lines in BUFFER; the last one may lack its newline."
  (with-current-buffer buffer
    (qwen-companion-buffers-widened
      ;; In large steps: drawing the hunks uses the starts cached here.
      (let ((line 1) (before 0) (start (point-min)))
        (while (progn (qwen-companion-hunks-goto line)
                      (not (eobp)))
          (setq before (1- line)
                start (point)
                line (+ line (* 5 qwen-companion-hunks--long-distance))))
        (+ before (count-lines start (point-max)))))))

(defun qwen-companion-hunks--replace (buffer line count text)
  "Replace COUNT lines from LINE in BUFFER by TEXT.
Return (LINES . MENDED): the old lines, and whether a newline was added
to keep two lines from joining."
  (with-current-buffer buffer
    (qwen-companion-buffers-widened
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
              (qwen-companion-hunks--text-changed line))))))))

;;; Comparing

(defun qwen-companion-hunks--current-ticks (difference)
  "Return a value that identifies the present texts of DIFFERENCE."
  (cons (buffer-chars-modified-tick (qwen-companion-hunks-old difference))
        (buffer-chars-modified-tick (qwen-companion-hunks-new difference))))

(defun qwen-companion-hunks-up-to-date-p (difference)
  "Return non-nil when DIFFERENCE matches the present texts."
  (equal (qwen-companion-hunks-ticks difference)
         (qwen-companion-hunks--current-ticks difference)))

(defun qwen-companion-hunks-compare (difference callback)
  "Update DIFFERENCE asynchronously, and then call CALLBACK.
Its argument is non-nil on success, nil when the texts cannot be
compared.  It is not called if a buffer is killed meanwhile, or if this
comparison is in progress already."
  (let ((now (qwen-companion-hunks--current-ticks difference)))
    (unless (equal now (qwen-companion-hunks-requested-ticks difference))
      (setf (qwen-companion-hunks-requested-ticks difference) now)
      (qwen-companion-merge-compare
       (qwen-companion-hunks-old difference)
       (qwen-companion-hunks-new difference)
       (lambda (found)
         (qwen-companion-hunks--compared difference now found callback))))))

(defun qwen-companion-hunks--compared (difference ticks found callback)
  "Update DIFFERENCE with FOUND, the comparison of the texts at TICKS.
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
  "Update DIFFERENCE with FOUND, see `qwen-companion-merge-compare'.
Dropped changes stay dropped, and split ones stay split where possible."
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
    (unless old-same
      ;; Positions on disk have changed.
      (setf (qwen-companion-hunks-steps difference) nil))
    (setf (qwen-companion-hunks-changes difference)
          ;; FOUND is in order.
          (if dropped
              (qwen-companion-hunks--merge
               difference kept dropped
               (qwen-companion-hunks--after-insertion known)
               (cond (new-same 'new) (old-same 'old)))
            kept))))

(defun qwen-companion-hunks--reapply-splits (found known)
  "Return FOUND as a list of structures, split like those in KNOWN.
Any division into runs of lines is valid, so the line numbers decide."
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
  "Return each dropped change of KNOWN that follows an insertion at its line."
  (let (after-insertion previous)
    (dolist (change known after-insertion)
      (if (qwen-companion-hunks-change-text change)
          (when (and previous
                     (zerop (qwen-companion-hunks-change-old-count previous))
                     (= (qwen-companion-hunks-change-old previous)
                        (qwen-companion-hunks-change-old change)))
            (push change after-insertion))
        (setq previous change)))))

(defun qwen-companion-hunks--merge (difference kept dropped after-insertion side)
  "Return KEPT and DROPPED as one list in order.
SIDE, `old' or `new', is the side of DIFFERENCE that is unchanged since
DROPPED was valid, or nil if both have changed.  AFTER-INSERTION are the
dropped changes that follow an insertion at the same line.  A dropped
change without a valid position becomes a stranded one."
  (cl-flet ((at (change) (if (eq side 'new)
                             (qwen-companion-hunks-change-new change)
                           (qwen-companion-hunks-change-old change)))
            (size (change) (if (eq side 'new)
                               (qwen-companion-hunks-change-new-count change)
                             (qwen-companion-hunks-change-old-count change)))
            (rank (change) (cond ((memq change after-insertion) 2)
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
  "Return non-nil when OTHER is the dropped CHANGE, restored.
It was restored by other means, such as undo.  Both are of DIFFERENCE."
  (and (= (qwen-companion-hunks-change-old change)
          (qwen-companion-hunks-change-old other))
       (= (qwen-companion-hunks-change-old-count change)
          (qwen-companion-hunks-change-old-count other))
       (equal (qwen-companion-hunks-change-text change)
              (qwen-companion-hunks-proposed-lines difference other))))

(defun qwen-companion-hunks--recompute-positions (all side)
  "Recompute the position of each dropped change in ALL, and return ALL.
SIDE, `old' or `new', has valid positions."
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
LIMIT non-nil is the maximum number of lines."
  (if-let* ((text (qwen-companion-hunks-change-text change)))
      (if limit
          (qwen-companion-hunks--first-lines text limit)
        text)
    (qwen-companion-hunks-lines
     (qwen-companion-hunks-new difference)
     (qwen-companion-hunks-change-new change)
     (min (qwen-companion-hunks-change-new-count change)
          (or limit most-positive-fixnum)))))

(defun qwen-companion-hunks-proposed-count (change)
  "Return the number of lines that CHANGE proposes, dropped or not."
  (if (qwen-companion-hunks-change-text change)
      (qwen-companion-hunks-change-text-count change)
    (qwen-companion-hunks-change-new-count change)))

(defun qwen-companion-hunks-disk-lines (difference change &optional limit)
  "Return the lines on disk in the place of CHANGE of DIFFERENCE.
LIMIT non-nil is the maximum number of lines."
  (qwen-companion-hunks-lines
   (qwen-companion-hunks-old difference)
   (qwen-companion-hunks-change-old change)
   (min (qwen-companion-hunks-change-old-count change)
        (or limit most-positive-fixnum))))

;;; Hunks

(defun qwen-companion-hunks-group (all context size)
  "Group ALL, a list in order, into hunks with up to CONTEXT lines around them.
SIZE is the number of lines on disk.  Changes share a hunk when their
contexts touch; without context, each is a hunk of its own."
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
  "Return the first line on disk after CHANGE."
  (+ (qwen-companion-hunks-change-old change)
     (qwen-companion-hunks-change-old-count change)))

(defun qwen-companion-hunks-dropped-p (hunk)
  "Return non-nil when HUNK is dropped."
  (and (qwen-companion-hunks-change-text
        (car (qwen-companion-hunks-hunk-changes hunk)))
       t))

(defconst qwen-companion-hunks--space-limit 100000
  "Characters above which a change is not checked for white space.")

(defun qwen-companion-hunks-only-space-p (difference hunk)
  "Return non-nil when HUNK of DIFFERENCE is about white space only."
  (cl-every
   (lambda (change)
     (let ((old (qwen-companion-hunks-disk-lines difference change))
           (new (qwen-companion-hunks-proposed-lines difference change)))
       (and (< (+ (length old) (length new)) qwen-companion-hunks--space-limit)
            (equal (replace-regexp-in-string "[[:space:]]+" "" old t t)
                   (replace-regexp-in-string "[[:space:]]+" "" new t t)))))
   (qwen-companion-hunks-hunk-changes hunk)))

;;; Dropping and restoring

(defun qwen-companion-hunks-drop (difference hunk)
  "Drop HUNK: replace its lines in the proposal by the text on disk.
DIFFERENCE, to which it belongs, must be up to date; it is outdated
afterwards if newlines had to be added."
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
  "Restore HUNK, which is dropped: put the proposed lines back.
DIFFERENCE, to which it belongs, must be up to date; it is outdated
afterwards if newlines had to be added."
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
  "Call FUNCTION with each change of HUNK and shift those that follow.
FUNCTION returns non-nil when it has added newlines to the text.  HUNK
belongs to DIFFERENCE."
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
            ;; Without a tick of the proposal the texts are compared again,
            ;; and the dropped changes located on disk.
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
Return the new second part.  If both counts are 0, let CHANGE begin a
hunk instead.  CHANGE belongs to DIFFERENCE.  Signal a `user-error' where
the parts could not be kept and dropped independently."
  (if (= 0 removed added)
      (setf (qwen-companion-hunks-change-cut change) t)
    (let* ((text (qwen-companion-hunks-change-text change))
           (new (qwen-companion-hunks-proposed-lines difference change))
           (old (qwen-companion-hunks-disk-lines difference change))
           (head (qwen-companion-hunks--first-lines new added))
           (first (qwen-companion-hunks--first-lines old removed))
           (tail (substring new (length head))))
      ;; Either part may be dropped, and lines must not join then.
      (when (or (qwen-companion-hunks-unterminated-p head)
                (qwen-companion-hunks-unterminated-p first))
        (user-error "Cannot split here: the line above has no newline at its end"))
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
  "Return non-nil when the last line of TEXT lacks its newline."
  (not (or (string-empty-p text) (string-suffix-p "\n" text))))

;;; Undoing

(defun qwen-companion-hunks-record (difference kind &rest arguments)
  "Record for `qwen-companion-hunks-undo' a step that was made in DIFFERENCE.
KIND and ARGUMENTS are

  `dropped' or `restored', and each change;
  `split', and the first part, or `cut' and the change that was made to
  begin a hunk;
  `edited', and (START BEFORE AFTER MODIFIED): the text AFTER from position
  START of the proposal was BEFORE, in a buffer that was MODIFIED or not.

A comparison may replace the changes by equal ones; their positions on
disk then identify them."
  (push (cons kind (if (eq kind 'edited)
                       arguments
                     (mapcar (lambda (change)
                               (cons change (qwen-companion-hunks--change-key change)))
                             arguments)))
        (qwen-companion-hunks-steps difference)))

(defun qwen-companion-hunks--change-key (change)
  "Return a key of CHANGE that is valid while the text on disk is unchanged."
  (cons (qwen-companion-hunks-change-old change)
        (qwen-companion-hunks-change-old-count change)))

(defun qwen-companion-hunks-undo (difference)
  "Undo the user's last step in DIFFERENCE and return it.
Signal a `user-error' if there is none, or if the text there has changed
since; forget the step in that case.  DIFFERENCE must be up to date; it
is outdated afterwards if the step was an edit."
  (pcase-let* ((step (or (pop (qwen-companion-hunks-steps difference))
                         (user-error "Nothing to undo in this review")))
               (`(,kind . ,arguments) step)
               (changes (qwen-companion-hunks-changes difference))
               (at (pcase-lambda (`(,change . ,place))
                     (or (car (memq change changes))
                         (cl-find place changes :test #'equal
                                  :key #'qwen-companion-hunks--change-key)
                         (qwen-companion-hunks--not-undone)))))
    (pcase kind
      ((or 'dropped 'restored)
       (let ((hunk (make-qwen-companion-hunks-hunk
                    :changes (mapcar at arguments))))
         (unless (cl-every (lambda (change)
                             (eq (eq kind 'dropped)
                                 (and (qwen-companion-hunks-change-text change) t)))
                           (qwen-companion-hunks-hunk-changes hunk))
           (qwen-companion-hunks--not-undone))
         (if (eq kind 'dropped)
             (qwen-companion-hunks-restore difference hunk)
           (qwen-companion-hunks-drop difference hunk))))
      ('cut (setf (qwen-companion-hunks-change-cut (funcall at (car arguments))) nil))
      ('split (qwen-companion-hunks--join difference (funcall at (car arguments))))
      ('edited
       (pcase-let ((`((,start ,before ,after ,modified)) arguments))
         (with-current-buffer (qwen-companion-hunks-new difference)
           (qwen-companion-buffers-widened
             (let ((end (+ start (length after))))
               (unless (and (<= end (point-max))
                            (equal after (buffer-substring-no-properties start end)))
                 (qwen-companion-hunks--not-undone))
               (undo-boundary)
               (goto-char start)
               (delete-region start end)
               (insert before)
               (undo-boundary)
               (set-buffer-modified-p modified)))))))
    step))

(defun qwen-companion-hunks--not-undone ()
  "Signal that the last step cannot be undone."
  (user-error "Cannot undo the last step: the text there has changed since"))

(defun qwen-companion-hunks--join (difference change)
  "Join CHANGE with the one after it, from which it was split.
Both are of DIFFERENCE."
  (let* ((cell (memq change (qwen-companion-hunks-changes difference)))
         (part (cadr cell))
         (text (qwen-companion-hunks-change-text change)))
    (unless (and part
                 (eq (null text) (null (qwen-companion-hunks-change-text part)))
                 (= (qwen-companion-hunks-change-end change)
                    (qwen-companion-hunks-change-old part))
                 (= (+ (qwen-companion-hunks-change-new change)
                       (qwen-companion-hunks-change-new-count change))
                    (qwen-companion-hunks-change-new part)))
      (qwen-companion-hunks--not-undone))
    (when text
      (setf (qwen-companion-hunks-change-text change)
            (concat text (qwen-companion-hunks-change-text part))
            (qwen-companion-hunks-change-text-count change)
            (+ (qwen-companion-hunks-change-text-count change)
               (qwen-companion-hunks-change-text-count part))))
    (cl-incf (qwen-companion-hunks-change-old-count change)
             (qwen-companion-hunks-change-old-count part))
    (cl-incf (qwen-companion-hunks-change-new-count change)
             (qwen-companion-hunks-change-new-count part))
    (setf (qwen-companion-hunks-change-words change) nil)
    (setcdr cell (cddr cell))))

(provide 'qwen-companion-hunks)
;;; qwen-companion-hunks.el ends here
