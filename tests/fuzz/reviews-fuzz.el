;;; reviews-fuzz.el --- Random steps of reviews with three CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Three CLIs propose changes of two files.  The user opens, edits, accepts
;; and rejects; the CLIs write, are answered in their terminals and die;
;; others write the files; the mode is turned off.  Emacs, Ediff and the
;; unified view are the real ones; the backend, which sends the outcomes
;; and compares texts, is stood in for.
;;
;; After each step, these must hold:
;; - The text sent with an acceptance is exactly what the review showed.
;; - Each proposal ends exactly once.
;; - No text is lost: it is on disk, or kept.
;; - No acceptance overwrites what was written under its review: it is merged.
;; - No message says something of a file that its bytes do not bear out.
;; - No buffer, window, or watch of a file is left.
;;
;; All comes of a seed: a failure names it, and it belongs into
;; `reviews-fuzz-seeds' then.

;;; Code:

(require 'cl-lib)
(require 'ediff)
(require 'filenotify)
(require 'qwen-companion-test-helper)
(require 'shown (expand-file-name "shown" (file-name-directory (macroexp-file-name))))

(defconst reviews-fuzz-seeds '((1 . 100) (2 . 100) (3 . 100) (14 . 100) (68 . 100) (1077 . 100))
  "Runs that belong to the tests: (SEED . STEPS).
Three for a start, and each that has failed once.")

(defconst reviews-fuzz--clis
  ;; NAME, whether it ends the last line, whether it writes edits that were
  ;; answered in the terminal, and whether it asks about all before it writes.
  '(("qwen" nil nil t) ("gemini" t t nil) ("old" nil t nil))
  "What the three CLIs do.")

(defconst reviews-fuzz--files '("a.txt" "b.el"))

(cl-defstruct (reviews-fuzz--sent (:copier nil))
  "A proposal as the test knows it.
CLI is the name of its CLI, FILE its file.  BASE is the text on disk
from which it was made, TEXT what was proposed.  END is how it has
ended, ACCEPTED the text that was sent, KNOWN non-nil when the CLI knows."
  proposal cli file base text end accepted known)

(defvar reviews-fuzz--all nil "All proposals, newest first.")
(defvar reviews-fuzz--merges nil "What is to be merged: (BASE MINE THEIRS LABELS CALLBACK).")
(defvar reviews-fuzz--trace nil "What was done, newest first.")
(defvar reviews-fuzz--said nil "What was said that is not true, newest first.")
(defvar reviews-fuzz--kept nil "Texts kept lately: (FILE . TEXT).")
(defvar reviews-fuzz--directory nil "The directory of the run.")

;;; Dice

(defun reviews-fuzz--one (list)
  "Return any element of LIST."
  (and list (nth (random (length list)) list)))

(defun reviews-fuzz--text (base)
  "Return a text that differs from BASE somewhere."
  (let* ((lines (split-string base "\n"))
         (place (random (length lines))))
    (pcase (random 12)
      (0 "")
      (1 (concat base "x"))
      (2 (string-replace "\n" "\r\n" (concat base "y\n")))
      (3 (concat "\ufeff" (string-remove-prefix "\ufeff" base) "z\n"))
      (4 (replace-regexp-in-string "\n\\'" "" (concat base "w")))
      ((or 5 6) (mapconcat #'identity
                           (append (seq-take lines place)
                                   (list (format "new %d" (random 100)))
                                   (seq-drop lines place))
                           "\n"))
      (_ (setf (nth place lines) (format "changed %d" (random 100)))
         (mapconcat #'identity lines "\n")))))

(defun reviews-fuzz--plain (text)
  "Return TEXT without what a CLI or Emacs may write differently."
  (string-remove-suffix
   "\n" (string-replace "\r" "" (string-remove-prefix "\ufeff" text))))

;;; The world

(defun reviews-fuzz--disk (file)
  "Return the text of FILE in the directory of the run, or an empty one.
Messages are also shown from buffers with another directory."
  (let ((file (expand-file-name file reviews-fuzz--directory)))
    (if (file-exists-p file) (qwen-companion-test-file-text file) "")))

(defun reviews-fuzz--write (file text)
  "Write TEXT to FILE; the watches may tell of it later."
  ;; As if some time had passed since what is known of the file.
  (qwen-companion-test-write file text (+ 2 (random 1000))))

(defun reviews-fuzz--notify (file)
  "Let what watches FILE know that it may have changed."
  (let ((path (expand-file-name file)))
    (qwen-companion-disk--check path)
    (qwen-companion-review-file-written path)))

(defun reviews-fuzz--open ()
  "Return the proposals that the test takes for open, newest first."
  (cl-remove-if #'reviews-fuzz--sent-end reviews-fuzz--all))

(defun reviews-fuzz--of-cli (cli)
  "Return the proposals of CLI, newest first."
  (cl-remove cli reviews-fuzz--all :key #'reviews-fuzz--sent-cli :test-not #'equal))

(defun reviews-fuzz--shown-text (sent)
  "Return the text that the review of SENT shows, in the form of a file."
  (let* ((text (reviews-fuzz--sent-text sent))
         (proposal (reviews-fuzz--sent-proposal sent))
         (shown (with-current-buffer (qwen-companion-proposal-buffer proposal)
                  (buffer-substring-no-properties (point-min) (point-max))))
         ;; What is brought back of a file that was to be emptied has its mark.
         (bom (string-prefix-p "\ufeff"
                               (if (and (qwen-companion-proposal-disk-buffer proposal)
                                        (string-empty-p text))
                                   (reviews-fuzz--disk (reviews-fuzz--sent-file sent))
                                 text)))
         (dos (cond
               ;; All carriage returns are on the screen.
               ((qwen-companion-proposal-exact proposal) nil)
               ((string-search "\n" text)
                (= (cl-count ?\n text) (1- (length (split-string text "\r\n")))))
               ;; A text of one line gets the line ends of the file.
               (t (equal "\r\n" (qwen-companion-proposal-line-end proposal))))))
    (if (string-empty-p shown)
        ""
      (concat (if bom "\ufeff" "")
              (if dos (string-replace "\n" "\r\n" shown) shown)))))

;;; Steps

(defun reviews-fuzz--propose ()
  "Let a CLI propose a change."
  (pcase-let* ((`(,cli ,ends-lines ,_ ,_) (reviews-fuzz--one reviews-fuzz--clis))
               (file (reviews-fuzz--one reviews-fuzz--files))
               (base (reviews-fuzz--disk file))
               (text (reviews-fuzz--text base))
               (older (cl-find-if (lambda (sent)
                                    (and (equal cli (reviews-fuzz--sent-cli sent))
                                         (equal file (reviews-fuzz--sent-file sent))
                                         (or (null (reviews-fuzz--sent-end sent))
                                             (and (memq (reviews-fuzz--sent-end sent)
                                                        '(accepted rejected))
                                                  (not (reviews-fuzz--sent-known sent))))))
                                  reviews-fuzz--all))
               (owed (and older (reviews-fuzz--owed older nil))))
    (when older
      (setf (reviews-fuzz--sent-end older) 'superseded))
    (push (make-reviews-fuzz--sent
           :proposal (qwen-companion-test-propose
                      file text :session cli :client cli :ends-lines ends-lines)
           :cli cli :file file :base base :text text)
          reviews-fuzz--all)
    (reviews-fuzz--paid owed)))

(defun reviews-fuzz--owed (sent always)
  "Return (FILE . TEXT) of SENT, which is about to end, if that is to be kept.
That is when the user has edited it, or ALWAYS."
  (let ((proposal (reviews-fuzz--sent-proposal sent)))
    (cond
     ((eq 'accepted (reviews-fuzz--sent-end sent))
      (and (or always (qwen-companion-proposal-edited proposal))
           (cons (reviews-fuzz--sent-file sent) (reviews-fuzz--sent-accepted sent))))
     ((reviews-fuzz--sent-end sent) nil)
     ((or always (qwen-companion-proposal-edited-p proposal))
      (cons (reviews-fuzz--sent-file sent) (reviews-fuzz--shown-text sent))))))

(defun reviews-fuzz--kept-texts ()
  "Return the kept texts: (FILE . TEXT)."
  (mapcar (lambda (buffer)
            (cons (file-name-nondirectory (qwen-companion-rescue--path buffer))
                  (with-current-buffer buffer
                    (buffer-substring-no-properties (point-min) (point-max)))))
          (qwen-companion-rescue-buffers)))

(defun reviews-fuzz--paid (owed)
  "Fail unless OWED, (FILE . TEXT) or nil, is kept or on disk."
  (pcase owed
    (`(,file . ,text)
     (let ((plain (reviews-fuzz--plain text)))
       (unless (or (equal plain (reviews-fuzz--plain (reviews-fuzz--disk file)))
                   (cl-some (lambda (kept)
                              (and (equal file (car kept))
                                   (equal plain (reviews-fuzz--plain (cdr kept)))))
                            (reviews-fuzz--kept-texts)))
         (error "A text of %s is lost: %S" file text))))))

(defun reviews-fuzz--show ()
  "Open a review."
  (when-let* ((sent (reviews-fuzz--one (reviews-fuzz--open))))
    (let ((proposal (reviews-fuzz--sent-proposal sent)))
      (qwen-companion-diff-open proposal)
      (unless (eq proposal (qwen-companion-review-shown))
        (error "The review is not shown")))))

(defun reviews-fuzz--shown ()
  "Return the proposal that is shown, as the test knows it, or nil."
  (when-let* ((shown (qwen-companion-review-shown)))
    (cl-find shown reviews-fuzz--all :key #'reviews-fuzz--sent-proposal)))

(defun reviews-fuzz--edit ()
  "Edit a proposal as a user does."
  (when-let* ((sent (reviews-fuzz--one (reviews-fuzz--open))))
    (qwen-companion-test-editing (reviews-fuzz--sent-proposal sent)
      (goto-char (1+ (random (1+ (buffer-size)))))
      (pcase (random 4)
        (0 (insert "mine"))
        (1 (insert "line\n"))
        (2 (delete-region (point) (min (point-max) (+ (point) (random 9)))))
        (_ (forward-line 0)
           (delete-region (point) (line-beginning-position 2))))
      (undo-boundary))))

(defun reviews-fuzz--decide (command)
  "Answer any proposal by COMMAND, that shown rather than others."
  (when-let* ((sent (or (and (< (random 3) 2) (reviews-fuzz--shown))
                        (reviews-fuzz--one (reviews-fuzz--open)))))
    (let* ((proposal (reviews-fuzz--sent-proposal sent))
           (accept (eq command #'qwen-companion-diff-accept))
           (shown (reviews-fuzz--shown-text sent)))
      (condition-case err
          (progn
            (funcall command proposal)
            (setf (reviews-fuzz--sent-end sent) (if accept 'accepted 'rejected))
            (when accept
              (setf (reviews-fuzz--sent-accepted sent) shown)
              (reviews-fuzz--check-merged sent))
            (let* ((payload (cdar qwen-companion-test-calls))
                   (text (qwen-companion-test-text-in payload)))
              (unless (and (equal (qwen-companion-proposal-id proposal)
                                  (plist-get payload :id))
                           (eq (if accept 'accepted 'rejected)
                               (plist-get payload :outcome))
                           (equal text (and accept shown)))
                (error "Sent %S where the review showed %S" payload shown))))
        (user-error
         (unless (memq proposal (qwen-companion-proposals))
           (error "Refused and ended: %S" err)))))))

(defun reviews-fuzz--check-merged (sent)
  "Check that SENT was accepted with all that is in its file, if that is there."
  (let ((disk (reviews-fuzz--plain (reviews-fuzz--disk (reviews-fuzz--sent-file sent))))
        (origin (qwen-companion-proposal-origin (reviews-fuzz--sent-proposal sent))))
    (unless (member disk (list "" (reviews-fuzz--plain (cdr origin))))
      (error "%S was accepted over %S, which it is not merged with"
             (reviews-fuzz--sent-accepted sent) disk))))

(defun reviews-fuzz--hunk ()
  "Drop a hunk, or bring one back."
  (when-let* ((sent (reviews-fuzz--shown))
              (proposal (reviews-fuzz--sent-proposal sent))
              ((eq 'unified (qwen-companion-proposal-style proposal)))
              (view (qwen-companion-review-windows-control proposal)))
    (with-current-buffer view
      (qwen-companion-review-unified--revert)
      (when-let* ((hunk (reviews-fuzz--one qwen-companion-review-unified--hunks)))
        (goto-char (car (qwen-companion-hunks-view-bounds hunk)))
        (if (qwen-companion-hunks-dropped-p hunk)
            (qwen-companion-unified-restore)
          (qwen-companion-unified-drop))))))

(defun reviews-fuzz--other-program ()
  "Let another program write a file, or delete it."
  (let ((file (reviews-fuzz--one reviews-fuzz--files)))
    (if (zerop (random 10))
        (when (file-exists-p file) (delete-file file))
      (reviews-fuzz--write file (reviews-fuzz--text (reviews-fuzz--disk file))))
    (when (zerop (random 2))
      (reviews-fuzz--notify file))))

(defun reviews-fuzz--deliver ()
  "Let a CLI get to know the outcomes that are on their way."
  (let ((cli (car (reviews-fuzz--one reviews-fuzz--clis))))
    (dolist (sent (reviews-fuzz--of-cli cli))
      (when (and (memq (reviews-fuzz--sent-end sent) '(accepted rejected))
                 (not (reviews-fuzz--sent-known sent)))
        (setf (reviews-fuzz--sent-known sent) t)
        (qwen-companion-proposal-on-delivered
         (list :id (qwen-companion-proposal-id
                    (reviews-fuzz--sent-proposal sent))))))))

(defun reviews-fuzz--cli-writes ()
  "Let a CLI write what it knows to be accepted, one after the other."
  (pcase-let ((`(,cli ,ends-lines ,_ ,waits) (reviews-fuzz--one reviews-fuzz--clis)))
    (let ((mine (reviews-fuzz--of-cli cli)))
      (unless (and waits (cl-some (lambda (sent) (null (reviews-fuzz--sent-end sent)))
                                  mine))
        (dolist (sent (reverse mine))
          (when (and (eq 'accepted (reviews-fuzz--sent-end sent))
                     (reviews-fuzz--sent-known sent))
            (setf (reviews-fuzz--sent-end sent) 'written)
            (let* ((file (reviews-fuzz--sent-file sent))
                   (accepted (reviews-fuzz--sent-accepted sent))
                   (combined (reviews-fuzz--combine (reviews-fuzz--sent-base sent)
                                                    (reviews-fuzz--disk file)
                                                    accepted))
                   (edited (not (equal accepted (reviews-fuzz--sent-text sent)))))
              (cond
               ;; It applies what it proposed to what is there now.
               ((and waits combined (not edited))
                (reviews-fuzz--write file combined))
               ;; It finds no place for an edited text.
               ((and waits edited
                     (not (equal (reviews-fuzz--disk file)
                                 (reviews-fuzz--sent-base sent)))))
               (t (reviews-fuzz--write
                   file (if ends-lines (qwen-companion-disk-end-line accepted)
                          accepted))))
              (when (zerop (random 2))
                (reviews-fuzz--notify file)))))))))

(defun reviews-fuzz--combine (base mine theirs)
  "Return MINE with the one change that made THEIRS of BASE, or nil."
  (let* ((parts (lambda (text)
                  (let* ((least (min (length base) (length text)))
                         (head (or (cl-mismatch base text) least))
                         (tail 0))
                    (while (and (< tail (- least head))
                                (eq (aref base (- (length base) tail 1))
                                    (aref text (- (length text) tail 1))))
                      (cl-incf tail))
                    (list head (- (length base) tail)
                          (substring text head (- (length text) tail))))))
         (one (funcall parts mine))
         (other (funcall parts theirs))
         (first (if (< (car one) (car other)) one other))
         (second (if (eq first one) other one)))
    (cond
     ((equal base theirs) mine)
     ((equal base mine) theirs)
     ((< (nth 1 first) (car second))
      (concat (substring base 0 (car first)) (nth 2 first)
              (substring base (nth 1 first) (car second)) (nth 2 second)
              (substring base (nth 1 second)))))))

(defun reviews-fuzz--answer-merge ()
  "Answer what is to be merged."
  (when-let* ((merge (car (last reviews-fuzz--merges))))
    (setq reviews-fuzz--merges (butlast reviews-fuzz--merges))
    (pcase-let ((`(,base ,mine ,theirs ,labels ,callback) merge))
      (funcall callback
               (if labels
                   (and (< 0 (random 10)) (qwen-companion-test-merge base mine theirs labels))
                 (when-let* ((result (reviews-fuzz--combine base mine theirs)))
                   (make-qwen-companion-merge-result :edits [] :text result)))))))

(defun reviews-fuzz--close ()
  "Let a proposal be answered in the terminal."
  (when-let* ((sent (reviews-fuzz--one
                     (cl-remove-if (lambda (sent)
                                     (or (reviews-fuzz--sent-known sent)
                                         (memq (reviews-fuzz--sent-end sent)
                                               '(closed orphaned superseded written))))
                                   reviews-fuzz--all))))
    (pcase-let* ((`(,_ ,ends-lines ,keeps ,_)
                  (assoc (reviews-fuzz--sent-cli sent) reviews-fuzz--clis))
                 (owed (reviews-fuzz--owed sent nil))
                 (shown (cond ((eq 'accepted (reviews-fuzz--sent-end sent))
                               (reviews-fuzz--sent-accepted sent))
                              ((null (reviews-fuzz--sent-end sent))
                               (reviews-fuzz--shown-text sent))))
                 (answer (qwen-companion-proposal-on-close
                          (list :id (qwen-companion-proposal-id
                                     (reviews-fuzz--sent-proposal sent))
                                :keeps-edits keeps))))
      (unless (equal shown (qwen-companion-test-text-in answer))
        (error "The CLI got %S where the review showed %S" answer shown))
      (setf (reviews-fuzz--sent-end sent) 'closed)
      (reviews-fuzz--paid owed)
      (when (and shown (zerop (random 2)))
        (reviews-fuzz--write (reviews-fuzz--sent-file sent)
                             (let ((text (if keeps shown (reviews-fuzz--sent-text sent))))
                               (if ends-lines (qwen-companion-disk-end-line text) text)))
        (when (zerop (random 2))
          (reviews-fuzz--notify (reviews-fuzz--sent-file sent)))))))

(defun reviews-fuzz--die ()
  "Let a CLI die; another one with its name comes."
  (let ((cli (car (reviews-fuzz--one reviews-fuzz--clis))))
    (dolist (sent (reviews-fuzz--of-cli cli))
      (unless (or (reviews-fuzz--sent-known sent)
                  (memq (reviews-fuzz--sent-end sent)
                        '(closed orphaned superseded written)))
        (let ((owed (reviews-fuzz--owed sent t)))
          (qwen-companion-proposal-on-orphan
           (list :id (qwen-companion-proposal-id (reviews-fuzz--sent-proposal sent))))
          (setf (reviews-fuzz--sent-end sent) 'orphaned)
          (reviews-fuzz--paid owed)))
      (when (eq 'accepted (reviews-fuzz--sent-end sent))
        (setf (reviews-fuzz--sent-end sent) 'written)))))

(defun reviews-fuzz--mode-off ()
  "Turn the mode off and on again."
  (let ((owed (mapcar (lambda (sent) (reviews-fuzz--owed sent nil))
                      (reviews-fuzz--open))))
    (qwen-companion-proposal-end-all)
    (qwen-companion-disk-forget-all)
    (dolist (sent reviews-fuzz--all)
      (unless (eq 'written (reviews-fuzz--sent-end sent))
        (setf (reviews-fuzz--sent-end sent) 'closed)))
    (setq reviews-fuzz--merges nil)
    (mapc #'reviews-fuzz--paid owed)))

(defun reviews-fuzz--time-passes ()
  "Let the time be over in which the CLIs should have written."
  (dolist (write (copy-sequence qwen-companion-disk--writes))
    (when (and (memq write qwen-companion-disk--writes)
               (qwen-companion-disk--write-timer write))
      (let* ((path (qwen-companion-disk--write-path write))
             (optional (qwen-companion-disk--write-optional write))
             (text (qwen-companion-disk-accepted write))
             (stamp (qwen-companion-disk--write-stamp write))
             (unchanged (equal stamp (qwen-companion-disk-stamp path))))
        (qwen-companion-disk--give-up write)
        (when (and unchanged text (not optional)
                   (null (qwen-companion-disk--expected path)))
          (reviews-fuzz--paid (cons (file-name-nondirectory path) text)))))))

(defconst reviews-fuzz--steps
  `((8 . reviews-fuzz--propose)
    (12 . reviews-fuzz--show)
    (6 . reviews-fuzz--edit)
    (5 . ,(lambda () (reviews-fuzz--decide #'qwen-companion-diff-accept)))
    (2 . ,(lambda () (reviews-fuzz--decide #'qwen-companion-diff-reject)))
    (20 . reviews-fuzz--hunk)
    (4 . reviews-fuzz--other-program)
    (5 . reviews-fuzz--deliver)
    (5 . reviews-fuzz--cli-writes)
    (3 . reviews-fuzz--answer-merge)
    (3 . reviews-fuzz--close)
    (1 . reviews-fuzz--die)
    (1 . reviews-fuzz--mode-off)
    (3 . reviews-fuzz--time-passes)
    (3 . ,(lambda () (mapc #'reviews-fuzz--notify reviews-fuzz--files)))
    (3 . ,(lambda () (when (qwen-companion-review-shown)
                       (qwen-companion-diff-switch (qwen-companion-review-shown)))))
    (2 . ,(lambda () (when-let* ((shown (qwen-companion-review-shown)))
                       (with-current-buffer (qwen-companion-proposal-buffer shown)
                         (qwen-companion-diff-bury)))))
    (1 . ,(lambda () (when-let* ((sent (reviews-fuzz--one (reviews-fuzz--open))))
                       (kill-buffer (qwen-companion-proposal-buffer
                                     (reviews-fuzz--sent-proposal sent)))))))
  "What may happen: (WEIGHT . FUNCTION).")

(defun reviews-fuzz--step ()
  "Let anything happen."
  (let ((dice (random (apply #'+ (mapcar #'car reviews-fuzz--steps))))
        (steps reviews-fuzz--steps))
    (while (>= dice (caar steps))
      (cl-decf dice (car (pop steps))))
    (push (cl-position (car steps) reviews-fuzz--steps) reviews-fuzz--trace)
    (funcall (cdar steps))))

;;; What must hold

(defun reviews-fuzz--check-ends ()
  "Check that each proposal ends exactly once, as the test knows."
  (let ((open (mapcar #'reviews-fuzz--sent-proposal (reviews-fuzz--open))))
    (unless (equal (reverse open) (qwen-companion-proposals))
      (error "Other proposals are open than those that were not ended")))
  (let (seen)
    (dolist (payload (qwen-companion-test-sent 'outcome))
      (when (member (plist-get payload :id) seen)
        (error "Two outcomes of one proposal: %S" payload))
      (push (plist-get payload :id) seen))))

(defun reviews-fuzz--check-view ()
  "Check that the unified view shows the text that would be accepted."
  (when-let* ((proposal (qwen-companion-review-shown))
              ((eq 'unified (qwen-companion-proposal-style proposal)))
              (view (qwen-companion-review-windows-control proposal)))
    (with-current-buffer view
      ;; As the commands do first.
      (unless (qwen-companion-hunks-up-to-date-p (qwen-companion-review-unified--difference))
        (qwen-companion-review-unified--revert)))
    (let ((text (with-current-buffer (qwen-companion-proposal-buffer proposal)
                  (buffer-substring-no-properties (point-min) (point-max))))
          (shown (let ((disk (qwen-companion-test-buffer-text
                              (qwen-companion-proposal-disk-buffer proposal))))
                   (with-current-buffer view
                     (shown-applied disk (cdr (shown-hunks)))))))
      (unless (equal text shown)
        (error "The view shows %S, accepted would be %S:\n%s" shown text
               (with-current-buffer view (buffer-string)))))))

(defun reviews-fuzz--false-p (said)
  "Return non-nil when SAID is not true of the bytes of the files.
They are compared now, when it is said."
  (or (string-search "cannot show" said)
      (cl-some
       (lambda (file)
         (when (string-search (concat "/" file) said)
           (let* ((disk (reviews-fuzz--plain (reviews-fuzz--disk file)))
                  (held (cl-some (lambda (text)
                                   (and (equal file (car text))
                                        (equal disk (reviews-fuzz--plain (cdr text)))))
                                 reviews-fuzz--kept)))
             (cond
              ((string-search "holds your edits" said) (not held))
              ((string-match-p
                "edits are not in it\\|not hold what was\\|but not this one" said)
               (equal disk (reviews-fuzz--plain
                            (cdr (assoc file (reverse (reviews-fuzz--kept-texts)))))))))))
       reviews-fuzz--files)))

(defun reviews-fuzz--check-messages ()
  "Check that nothing false was said."
  (when reviews-fuzz--said
    (error "Said: %S" reviews-fuzz--said)))

(defun reviews-fuzz--check-leaks ()
  "Check that nothing is left of reviews that have ended."
  (let ((open (qwen-companion-proposals)))
    (dolist (buffer (buffer-list))
      (let ((proposal (buffer-local-value 'qwen-companion-proposal-current buffer)))
        (when (and proposal
                   (not (memq proposal open))
                   (not (memq buffer (qwen-companion-rescue-buffers))))
          (error "%s is left" buffer))))
    (unless (cl-every (lambda (control)
                        (memq (buffer-local-value 'qwen-companion-proposal-current control)
                              open))
                      ediff-session-registry)
      (error "A control panel is left"))
    (when (cl-some (lambda (buffer) (string-prefix-p " merged" (buffer-name buffer)))
                   (buffer-list))
      (error "A merged text is left"))
    (let ((watches (+ (cl-count-if #'qwen-companion-proposal-watch open)
                      (cl-count-if #'qwen-companion-disk--write-watch
                                   qwen-companion-disk--writes)
                      (cl-count-if (lambda (buffer)
                                     (qwen-companion-rescue-watch
                                      (buffer-local-value 'qwen-companion-rescue--current
                                                          buffer)))
                                   (qwen-companion-rescue-buffers)))))
      (unless (= watches (apply #'+ (mapcar #'length (hash-table-values
                                                      qwen-companion-disk--watches))))
        (error "There should be %d watches: %S" watches
               (hash-table-values qwen-companion-disk--watches)))
      ;; One for each directory, and none for a directory without a watch.
      (unless (= (hash-table-count qwen-companion-disk--directories)
                 (hash-table-count file-notify-descriptors))
        (error "There are %d watched directories and should be %d"
               (hash-table-count file-notify-descriptors)
               (hash-table-count qwen-companion-disk--directories))))
    (unless (qwen-companion-review-shown)
      (unless (and (one-window-p t)
                   (equal "*terminal*" (buffer-name (window-buffer))))
        (error "Windows are left: %S" (window-list))))))

;;; Running

(defun reviews-fuzz--note (format &rest arguments)
  "Note what `message' is told to say: FORMAT with ARGUMENTS."
  (when format
    (let ((said (apply #'format-message format arguments)))
      (when (string-search "is kept in" said)
        (setq reviews-fuzz--kept (append (reviews-fuzz--kept-texts) reviews-fuzz--kept)))
      (when (reviews-fuzz--false-p said)
        (push said reviews-fuzz--said)))))

(defun reviews-fuzz-run (seed steps)
  "Do STEPS random steps, those of SEED; signal an error that names it."
  (random (format "reviews %d" seed))
  (let ((reviews-fuzz--all nil) (reviews-fuzz--merges nil) (reviews-fuzz--trace nil)
        (reviews-fuzz--said nil) (reviews-fuzz--kept nil) reviews-fuzz--directory
        (inhibit-message t)
        (qwen-companion-diff-arrival 'command)
        (qwen-companion-diff-style (reviews-fuzz--one '(ediff unified unified)))
        (qwen-companion-disk-written-functions
         '(qwen-companion-review-file-written qwen-companion-rescue-file-written))
        (done 0))
    (qwen-companion-test-with-files '(("a.txt" "1\n2\n3\n4\n5\n6\n7\n8\n9\n")
                                      ("b.el" "(1)\n(2)\n(3)\n"))
      (setq reviews-fuzz--directory default-directory)
      (qwen-companion-test-with-backend
        (cl-letf (((symbol-function 'message) #'reviews-fuzz--note)
                  ((symbol-function 'qwen-companion-rescue-compare) #'ignore)
                  ((symbol-function 'qwen-companion-merge-compare) #'qwen-companion-test-compare-now)
                  ((symbol-function 'qwen-companion-merge-texts)
                   (lambda (base mine theirs labels callback)
                     (push (list base (if (bufferp mine) (qwen-companion-test-buffer-text mine) mine)
                                 theirs labels callback)
                           reviews-fuzz--merges))))
          (set-frame-size (selected-frame) 120 40)
          (delete-other-windows)
          (switch-to-buffer (get-buffer-create "*terminal*"))
          (condition-case err
              (dotimes (_ steps)
                (cl-incf done)
                (setq reviews-fuzz--kept (reviews-fuzz--kept-texts))
                (reviews-fuzz--step)
                (reviews-fuzz--check-ends)
                (reviews-fuzz--check-view)
                (reviews-fuzz--check-messages)
                (reviews-fuzz--check-leaks)
                ;; Else there would be thousands in the end.
                (when (> (length (qwen-companion-rescue-buffers)) 20)
                  (mapc #'kill-buffer (qwen-companion-rescue-buffers))))
            (error (error "Seed %d, step %d: %s\n%S" seed done
                          (error-message-string err)
                          (seq-take reviews-fuzz--trace 20))))
          (mapc #'kill-buffer (qwen-companion-rescue-buffers)))))))

(defun reviews-fuzz ()
  "Do as many steps as the command line says, in runs of 100; say the result.
The arguments are the number of steps and the first seed."
  (let* ((steps (string-to-number (or (pop command-line-args-left) "5000")))
         (seed (string-to-number (or (pop command-line-args-left) "1")))
         (runs (/ (+ steps 99) 100)))
    (condition-case err
        (dotimes (run runs)
          (reviews-fuzz-run (+ seed run) 100))
      (error (message "reviews: %s" (error-message-string err))
             (kill-emacs 1)))
    (message "reviews: %d steps from seed %d on, without a violation" (* 100 runs) seed)))

(provide 'reviews-fuzz)
;;; reviews-fuzz.el ends here
