;;; qwen-companion-ediff.el --- Reviews with Ediff  -*- lexical-binding: t; -*-

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

;; The front end that shows a proposal with Ediff: the text on disk as
;; variant A, the proposal as variant B, on demand the user's unsaved text
;; as variant C, the control panel below.
;;
;; The windows are laid out here and not by Ediff, so that the selected
;; window (the terminal, usually) stays where it is.  That needs no advice
;; and changes no setting of the user's: Ediff keeps a layout it finds in
;; order, and a hook local to the control panel puts it in order first.

;;; Code:

(require 'cl-lib)
(require 'ediff)
(require 'ediff-util)
(require 'ediff-wind)
(require 'qwen-companion-diff)

(defcustom qwen-companion-ediff-layout 'auto
  "How the two sides of a review are laid out.
`auto' means side by side in a frame that is wide enough, else stacked.
In the control panel of a review, the key | changes it."
  :group 'qwen-companion
  :type '(choice (const :tag "As the frame allows" auto)
                 (const :tag "Side by side" side-by-side)
                 (const :tag "Stacked" stacked)))

(defcustom qwen-companion-ediff-control 'window
  "Where the control panel of a review is.
`window': below the two sides.  `frame': in a frame of its own, where
Emacs draws windows of the system's; with the parameters of
`ediff-control-frame-parameters'."
  :group 'qwen-companion
  :type '(choice (const :tag "In a window below the sides" window)
                 (const :tag "In a frame of its own" frame)))

(defconst qwen-companion-ediff--side-width 60
  "Columns that a side needs to be beside another one.")

(defconst qwen-companion-ediff--least-height 14
  "Lines a review needs beside another window, else it takes the frame.")

(defconst qwen-companion-ediff--tight-height 9
  "Lines below which a review takes the place of the side windows too.")

(defconst qwen-companion-ediff--kept-height 6
  "Lines the window beside a review keeps at least.")

(cl-defstruct (qwen-companion-ediff--view (:copier nil))
  "What shows a proposal.
CONTROL is the control panel, FRAME where the review was shown, KEPT the
window that stays visible beside it (nil when it has FRAME for itself),
BEFORE how FRAME looked, POINT a marker for point in the window that was
selected there, which BEFORE does not tell, and PANEL-FRAME the frame of the control panel
when it has one of its own."
  control frame kept before point panel-frame)

;;; Keys and help

(defvar qwen-companion-ediff--keys
  '(("q" . qwen-companion-diff-bury)
    ("z" . qwen-companion-diff-bury)
    ("C-c C-c" . qwen-companion-diff-accept)
    ("C-c C-k" . qwen-companion-diff-reject)
    ("u" . qwen-companion-diff-show-unsaved)
    ("C-c C-u" . qwen-companion-diff-show-unsaved))
  "Keys of the control panel that are ours.")

(defun qwen-companion-ediff--set-keys ()
  "Give the control panel our keys; Ediff's own map is left as it is."
  (let ((map (make-sparse-keymap)))
    (set-keymap-parent map (current-local-map))
    (pcase-dolist (`(,key . ,command) qwen-companion-ediff--keys)
      (define-key map (kbd key) command))
    (use-local-map map)))

(defun qwen-companion-ediff--unsaved-help ()
  "Return the help of the current control panel for unsaved text.
That is a cons cell, short and long, of empty strings where there is none."
  (cond
   ((qwen-companion-proposal-yours-buffer qwen-companion-diff--proposal)
    (cons "u without your text   "
          "  u -without your unsaved text (C)   `cb' copies your change to B: taken over\n"))
   ((qwen-companion-proposal-unsaved qwen-companion-diff--proposal)
    (cons "u your unsaved text   "
          "  u -your unsaved text as a third party\n"))
   (t '("" . ""))))

(defun qwen-companion-ediff--brief-help ()
  "Return the help shown in the control panel."
  (concat " C-c C-c accept   C-c C-k reject   q put aside   "
          (car (qwen-companion-ediff--unsaved-help))
          "n/p next/previous change   "
          (unless ediff-3way-job "a/b keep A's/B's   ")
          "? all keys"))

(defun qwen-companion-ediff--long-help ()
  "Return Ediff's own help with our keys on top."
  (concat
   "  C-c C-c -accept the proposal (B) as it is now   C-c C-k -reject it   q -put it aside\n"
   (cdr (qwen-companion-ediff--unsaved-help))
   (if ediff-3way-job
       "  Edit B directly; `ab' copies the change at hand from the disk (A) to B: dropped.\n"
     "  Edit B directly; `a' copies the change at hand from the disk (A) to B: dropped.\n")
   ediff-long-help-message-head
   (if ediff-3way-job
       ediff-long-help-message-compare3
     ediff-long-help-message-compare2)
   ediff-long-help-message-tail))

;;; Windows as they were

(defun qwen-companion-ediff--frame (proposal)
  "Return the frame in which PROPOSAL is to be shown now.
That of the terminal in which its CLI runs, else the selected frame."
  (or (qwen-companion-diff--frame-for proposal)
      (selected-frame)))

(defun qwen-companion-ediff--buffers (proposal)
  "Return the live buffers that are parts of the review of PROPOSAL."
  (cl-remove-if-not
   #'buffer-live-p
   (list (qwen-companion-proposal-disk-buffer proposal)
         (qwen-companion-proposal-buffer proposal)
         (qwen-companion-proposal-yours-buffer proposal)
         (qwen-companion-ediff--control proposal))))

(defun qwen-companion-ediff--visible-p (proposal frame)
  "Return non-nil when a part of the review of PROPOSAL is in FRAME.
A frame, or any value that `get-buffer-window' takes for one."
  (cl-some (lambda (buffer) (get-buffer-window buffer frame))
           (qwen-companion-ediff--buffers proposal)))

(defun qwen-companion-ediff--new-view (proposal frame select)
  "Return a new view for showing PROPOSAL in FRAME, with SELECT or without.
It takes over what is known of FRAME when the review is in it already."
  (let ((old (qwen-companion-proposal-view proposal))
        (view (make-qwen-companion-ediff--view
               :control (qwen-companion-ediff--control proposal)
               :frame frame
               :kept (qwen-companion-ediff--kept proposal frame select)))
        (selected (frame-selected-window frame)))
    (when old
      (setf (qwen-companion-ediff--view-panel-frame view)
            (qwen-companion-ediff--view-panel-frame old)))
    (if (and old
             (eq frame (qwen-companion-ediff--view-frame old))
             (qwen-companion-ediff--visible-p proposal frame))
        (setf (qwen-companion-ediff--view-before view)
              (qwen-companion-ediff--view-before old)
              (qwen-companion-ediff--view-point view)
              (qwen-companion-ediff--view-point old))
      (setf (qwen-companion-ediff--view-before view)
            (current-window-configuration frame)
            (qwen-companion-ediff--view-point view)
            (with-current-buffer (window-buffer selected)
              (copy-marker (window-point selected)))))
    view))

(defun qwen-companion-ediff--beside (proposal frame)
  "Return the windows of FRAME that show no part of PROPOSAL's review."
  (let ((parts (qwen-companion-ediff--buffers proposal)))
    (cl-remove-if (lambda (window) (memq (window-buffer window) parts))
                  (window-list frame 'no-minibuffer))))

(defun qwen-companion-ediff--set-configuration (configuration)
  "Make a frame look as in CONFIGURATION; the selected frame stays that.
So does an active minibuffer: what is typed into it goes on."
  (let ((frame (selected-frame))
        (minibuffer (active-minibuffer-window)))
    (if minibuffer
        (let ((selected (selected-window)))
          (set-window-configuration configuration t t)
          (when (window-live-p selected)
            (select-window selected 'norecord)))
      (set-window-configuration configuration)
      (when (frame-live-p frame)
        (select-frame frame 'norecord)))))

(defun qwen-companion-ediff--windows-back (view beside terminals)
  "Make the frame of VIEW look as before the review.
BESIDE are the windows that were there beside the review: what the user
has put into them stays, and so do their points.  TERMINALS, buffers
that may have been out of sight, are shown where their output is now."
  (when (frame-live-p (qwen-companion-ediff--view-frame view))
    (let ((there (cl-loop for window in beside
                          when (window-live-p window)
                          collect (list window (window-buffer window)
                                        (window-point window)))))
      (qwen-companion-ediff--set-configuration
       (qwen-companion-ediff--view-before view))
      (pcase-dolist (`(,window ,buffer ,point) there)
        (when (and (window-live-p window) (buffer-live-p buffer))
          (unless (eq buffer (window-buffer window))
            (set-window-dedicated-p window nil)
            (set-window-buffer window buffer))
          (set-window-point window point)))
      (let ((selected (frame-selected-window
                       (qwen-companion-ediff--view-frame view)))
            (point (qwen-companion-ediff--view-point view)))
        (unless (or (assq selected there)
                    (not (eq (window-buffer selected) (marker-buffer point))))
          (set-window-point selected point)))
      (dolist (terminal terminals)
        (dolist (window (get-buffer-window-list
                         terminal nil (qwen-companion-ediff--view-frame view)))
          (unless (assq window there)
            (set-window-point window
                              (with-current-buffer terminal (point)))))))))

(defun qwen-companion-ediff--tab-back (proposal view)
  "Take PROPOSAL's review out of a tab of the frame of VIEW.
The tab is not the selected one; it looks as before when it is again."
  (when-let* ((frame (qwen-companion-ediff--view-frame view))
              ((frame-live-p frame))
              (tab (cl-some (lambda (buffer)
                              (tab-bar-get-buffer-tab buffer frame t))
                            (qwen-companion-ediff--buffers proposal)))
              (configuration (assq 'wc tab)))
    (setcdr configuration (qwen-companion-ediff--view-before view))
    (when-let ((point (assq 'wc-point tab)))
      (setcdr point (qwen-companion-ediff--view-point view)))))

(defun qwen-companion-ediff--restore-windows (proposal)
  "Take the review of PROPOSAL out of the windows, where it is in any.
If the user has put other things on the screen meanwhile, they stay."
  (when-let ((view (qwen-companion-proposal-view proposal)))
    (let ((frame (qwen-companion-ediff--view-frame view)))
      (cond
       ((not (frame-live-p frame)))
       ((qwen-companion-ediff--visible-p proposal frame)
        (let ((beside (qwen-companion-ediff--beside proposal frame))
              (terminals (qwen-companion-diff-terminals proposal)))
          (qwen-companion-ediff--windows-back view beside terminals)
          (when (and (active-minibuffer-window)
                     read-minibuffer-restore-windows)
            (qwen-companion-ediff--after-minibuffer
             (lambda ()
               (qwen-companion-ediff--windows-back view beside terminals))))))
       (t (qwen-companion-ediff--tab-back proposal view))))))

(defun qwen-companion-ediff--after-minibuffer (function)
  "Call FUNCTION when the active minibuffer has been left.
Emacs makes all frames look then as when it was entered."
  (letrec ((leave (lambda ()
                    (remove-hook 'minibuffer-exit-hook leave)
                    (run-at-time 0 nil function))))
    (add-hook 'minibuffer-exit-hook leave)))

;;; Windows of a review

(defun qwen-companion-ediff--clear-area (kept)
  "Return the window that is there when all but KEPT and side windows go.
It is KEPT itself, unless that is a side window."
  (if (window-parameter kept 'window-side)
      (let ((windows (cl-remove-if
                      (lambda (window) (window-parameter window 'window-side))
                      (window-list (window-frame kept) 'no-minibuffer))))
        (mapc #'delete-window (cdr windows))
        (car windows))
    (delete-other-windows kept)
    kept))

(defun qwen-companion-ediff--area (kept)
  "Return the window to divide for the review.
KEPT, nil or a live window, stays visible if there is room for both."
  (let* ((area (qwen-companion-ediff--clear-area (or kept (selected-window))))
         (height (window-total-height area)))
    (cond
     ((and kept (not (eq area kept))
           (>= height qwen-companion-ediff--tight-height))
      area)
     ((and (eq area kept)
           (>= height (+ qwen-companion-ediff--kept-height
                         qwen-companion-ediff--least-height)))
      (split-window kept
                    (max qwen-companion-ediff--kept-height
                         (min (/ height 3)
                              (- height qwen-companion-ediff--least-height)))
                    'above))
     (t
      (let ((ignore-window-parameters t))
        (delete-other-windows area))
      area))))

(defun qwen-companion-ediff--show-buffer (window buffer)
  "Show BUFFER in WINDOW, whatever it was dedicated to."
  (set-window-dedicated-p window nil)
  (set-window-buffer window buffer))

(defun qwen-companion-ediff--panel-height (window)
  "Return the lines of a control panel taken from WINDOW."
  (let ((height (window-total-height window)))
    (if ediff-use-long-help-message
        (min (- height qwen-companion-ediff--tight-height)
             (+ 3 (cl-count ?\n (qwen-companion-ediff--long-help))))
      (max 3 (min 4 (/ height 4))))))

(defun qwen-companion-ediff--panel-window (window view)
  "Return a window for the control panel of VIEW.
It is taken from WINDOW, or it is that of a frame of its own."
  (if (and (eq qwen-companion-ediff-control 'frame)
           (display-graphic-p (window-frame window)))
      (let ((frame (qwen-companion-ediff--view-panel-frame view)))
        (unless (frame-live-p frame)
          (setq frame (qwen-companion-ediff--make-panel-frame
                       (window-frame window)))
          (setf (qwen-companion-ediff--view-panel-frame view) frame))
        (set-frame-height frame (if ediff-use-long-help-message
                                    (+ 4 (cl-count ?\n (qwen-companion-ediff--long-help)))
                                  4))
        (frame-root-window frame))
    (split-window window
                  (- (qwen-companion-ediff--panel-height window))
                  'below)))

(defun qwen-companion-ediff--make-panel-frame (frame)
  "Make a frame for a control panel on the display of FRAME.
It takes no focus, and no minibuffer from FRAME: that could not be
deleted as long as it had it."
  (with-selected-frame frame
    (make-frame `((name . "Review")
                  (minibuffer . t)
                  (no-focus-on-map . t)
                  ;; Ediff's own parameters hide it at first.
                  (visibility . t)
                  (width . ,(+ 2 (length (qwen-companion-ediff--brief-help))))
                  (height . 4)
                  ,@ediff-control-frame-parameters))))

(defun qwen-companion-ediff--divide (window parts split)
  "Divide WINDOW into PARTS, two or three; return the new windows in order.
SPLIT is the function that does so, if there is room for what it does."
  (let* ((vertically (eq split #'split-window-vertically))
         (size (/ (if vertically
                      (window-total-height window)
                    (window-total-width window))
                  parts))
         (rest (with-selected-window window
                 (condition-case nil
                     (funcall split size)
                   ;; Too small for that.
                   (error (if vertically
                              (split-window-horizontally)
                            (split-window-vertically)))))))
    (cons window
          (if (= parts 2)
              (list rest)
            (qwen-companion-ediff--divide rest (1- parts) split)))))

(defun qwen-companion-ediff--layout ()
  "Lay out the windows of the review whose control panel is current.
Does nothing when they are in order."
  (unless (ediff-keep-window-config (current-buffer))
    (let* ((control (current-buffer))
           (proposal qwen-companion-diff--proposal)
           (view (qwen-companion-proposal-view proposal))
           (kept (qwen-companion-ediff--view-kept view))
           (window-min-height 1)
           (window-combination-resize nil)
           (sides (delq nil (list ediff-buffer-A ediff-buffer-B
                                  (and ediff-3way-job ediff-buffer-C))))
           (split ediff-split-window-function)
           (area (qwen-companion-ediff--area (and (window-live-p kept) kept)))
           (panel (qwen-companion-ediff--panel-window area view))
           (windows (qwen-companion-ediff--divide
                     area (length sides) split)))
      (cl-mapc #'qwen-companion-ediff--show-buffer windows sides)
      (qwen-companion-ediff--show-buffer panel control)
      ;; It is not when its window had to go.
      (set-buffer control)
      (setq ediff-multiframe nil
            ediff-window-A (nth 0 windows)
            ediff-window-B (nth 1 windows)
            ediff-window-C (nth 2 windows)
            ediff-control-window panel)
      (select-window panel)
      (ediff-setup-control-buffer control))))

;;; Session

(defun qwen-companion-ediff--split-function (frame sides)
  "Return the function that divides a window of FRAME into SIDES, a number."
  (if (pcase qwen-companion-ediff-layout
        ('side-by-side t)
        ('stacked nil)
        (_ (>= (frame-width frame) (* sides qwen-companion-ediff--side-width))))
      #'split-window-horizontally
    #'split-window-vertically))

(defun qwen-companion-ediff--adopt-control (proposal)
  "Make the current buffer, a new control panel, that of PROPOSAL."
  (setq qwen-companion-diff--proposal proposal)
  (setf (qwen-companion-ediff--view-control
         (qwen-companion-proposal-view proposal))
        (current-buffer))
  (setq-local ediff-window-setup-function #'ediff-setup-windows-plain
              ediff-split-window-function
              (qwen-companion-ediff--split-function
               (selected-frame)
               (if (qwen-companion-proposal-yours-buffer proposal) 3 2))
              ediff-brief-help-message-function
              #'qwen-companion-ediff--brief-help
              ediff-long-help-message-function
              #'qwen-companion-ediff--long-help
              ;; The mouse stays where it is.
              ediff-grab-mouse nil)
  (add-hook 'ediff-before-setup-windows-hook
            #'qwen-companion-ediff--layout nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-ediff--control-killed nil t))

(defun qwen-companion-ediff--started ()
  "Finish the start of a session; the control panel is current."
  (setq ediff-keep-variants t)
  (when ediff-3way-job
    ;; Ediff has made it writable, as if it were for a merge.
    (with-current-buffer ediff-buffer-C
      (setq buffer-read-only t)))
  (qwen-companion-ediff--set-keys)
  (when (> ediff-number-of-differences 0)
    (ediff-next-difference)))

(defun qwen-companion-ediff--control-killed ()
  "Put the review aside when its control panel is killed by hand."
  (let ((proposal qwen-companion-diff--proposal))
    (setq ediff-session-registry
          (delq (current-buffer) ediff-session-registry))
    (when (and (eq (qwen-companion-proposal-state proposal) 'shown)
               (eq (current-buffer) (qwen-companion-ediff--control proposal)))
      (setf (qwen-companion-proposal-state proposal) 'pending)
      (qwen-companion-ediff--restore-windows proposal)
      (qwen-companion-ediff--forget-view proposal)
      (qwen-companion-diff--schedule))))

(defun qwen-companion-ediff--forget-view (proposal)
  "Forget what has shown PROPOSAL."
  (when-let ((view (qwen-companion-proposal-view proposal)))
    (setf (qwen-companion-proposal-view proposal) nil)
    (when (frame-live-p (qwen-companion-ediff--view-panel-frame view))
      (delete-frame (qwen-companion-ediff--view-panel-frame view)))))

(defun qwen-companion-ediff--start (proposal)
  "Start an Ediff session for PROPOSAL in the selected frame."
  (let ((ediff-mode-hook
         (cons (lambda () (qwen-companion-ediff--adopt-control proposal))
               ediff-mode-hook))
        (disk (qwen-companion-proposal-disk-buffer proposal))
        (buffer (qwen-companion-proposal-buffer proposal))
        (yours (qwen-companion-proposal-yours-buffer proposal))
        (startup (list #'qwen-companion-ediff--started)))
    (if yours
        (ediff-buffers3 disk buffer yours startup)
      (ediff-buffers disk buffer startup))))

(defun qwen-companion-ediff--kept (proposal frame select)
  "Return the window of FRAME that stays visible beside PROPOSAL's review.
The selected one, unless SELECT is non-nil: then that of the terminal."
  (if select
      (cl-some (lambda (buffer) (get-buffer-window buffer frame))
               (qwen-companion-diff-terminals proposal))
    (frame-selected-window frame)))

(cl-defmethod qwen-companion-diff-show ((_style (eql 'ediff)) proposal select)
  "Show PROPOSAL with Ediff, and select it if SELECT is non-nil."
  (let* ((frame (qwen-companion-ediff--frame proposal))
         (selected (selected-window))
         (control (qwen-companion-ediff--control proposal)))
    (setf (qwen-companion-proposal-view proposal)
          (qwen-companion-ediff--new-view proposal frame select))
    (with-selected-frame frame
      (if control
          (with-current-buffer control
            (ediff-recenter 'no-rehighlight))
        (qwen-companion-ediff--start proposal)))
    (cond
     (select
      (let ((window (get-buffer-window
                     (qwen-companion-ediff--control proposal) t)))
        (select-frame-set-input-focus (window-frame window))
        (select-window window)))
     ((window-live-p selected)
      (select-window selected))
     (t
      ;; It had to go for the review.  What is typed next is for it: the
      ;; side that cannot be changed takes no harm from that.
      (select-window (get-buffer-window
                      (qwen-companion-proposal-disk-buffer proposal) frame))))))

(defun qwen-companion-ediff--control (proposal)
  "Return the control panel of PROPOSAL if it is alive."
  (when-let* ((view (qwen-companion-proposal-view proposal))
              (control (qwen-companion-ediff--view-control view)))
    (and (buffer-live-p control) control)))

(defun qwen-companion-ediff--quit (control frame)
  "End the Ediff session of CONTROL; the windows of FRAME are left alone."
  (let* ((frame (if (frame-live-p frame) frame (selected-frame)))
         (before (current-window-configuration frame))
         ;; That tells it of all windows but this one.
         (selected (frame-selected-window frame))
         (point (window-point selected)))
    (with-selected-window (frame-first-window frame)
      (with-current-buffer control
        ;; Ediff moves the mouse when the control panel has gone already.
        (cl-letf (((default-value 'ediff-grab-mouse) nil))
          (condition-case nil
              (ediff-really-quit nil)
            ;; It has not got far enough, or a hook of the user's fails.
            (error nil))))
      (when (buffer-live-p control)
        (kill-buffer control)))
    (when (frame-live-p frame)
      (qwen-companion-ediff--set-configuration before)
      ;; Not when it was the control panel's.
      (when (window-live-p selected)
        (set-window-point selected point)))))

(cl-defmethod qwen-companion-diff-hide ((_style (eql 'ediff)) proposal)
  "End the Ediff session of PROPOSAL; the windows return as they were.
If the user has put other things on the screen meanwhile, they stay."
  (qwen-companion-ediff--restore-windows proposal)
  (when-let ((control (qwen-companion-ediff--control proposal)))
    (qwen-companion-ediff--quit
     control
     (qwen-companion-ediff--view-frame (qwen-companion-proposal-view proposal))))
  (qwen-companion-ediff--forget-view proposal))

(cl-defmethod qwen-companion-diff-show-third ((_style (eql 'ediff)) proposal)
  "Let Ediff compare two texts of PROPOSAL or three, in the same place.
The part of the review that was selected still is."
  (let* ((view (qwen-companion-proposal-view proposal))
         (frame (qwen-companion-ediff--view-frame view))
         (control (qwen-companion-ediff--control proposal))
         (selected (selected-window))
         (buffer (window-buffer selected)))
    ;; It puts nothing aside when it goes.
    (setf (qwen-companion-ediff--view-control view) nil)
    (qwen-companion-ediff--quit control frame)
    (with-selected-frame frame
      (qwen-companion-ediff--start proposal))
    (when-let ((window (cond
                        ((eq buffer control)
                         (get-buffer-window
                          (qwen-companion-ediff--control proposal) t))
                        ((and (window-live-p selected)
                              (eq buffer (window-buffer selected)))
                         selected)
                        ((get-buffer-window buffer frame)))))
      (select-window window))))

(cl-defmethod qwen-companion-diff-note-unsaved ((_style (eql 'ediff)) proposal)
  "Let the control panel of PROPOSAL offer to show unsaved text, or not."
  (when-let* ((control (qwen-companion-ediff--control proposal))
              (window (get-buffer-window control t)))
    (with-selected-window window
      (let ((inhibit-read-only t))
        (ediff-setup-control-buffer control)))))

(cl-defmethod qwen-companion-diff-refresh ((_style (eql 'ediff)) proposal)
  "Let Ediff compare the two sides of PROPOSAL anew if it is on the screen."
  (when-let ((control (qwen-companion-ediff--control proposal))
             ((qwen-companion-diff-visible-p 'ediff proposal)))
    (let ((selected (selected-window)))
      (save-current-buffer
        ;; Ediff loses its way where another window is selected.
        (if-let ((window (get-buffer-window control t)))
            (select-window window 'norecord)
          (set-buffer control))
        (ediff-update-diffs))
      (when (window-live-p selected)
        (select-window selected)))))

(cl-defmethod qwen-companion-diff-visible-p ((_style (eql 'ediff)) proposal)
  "Return non-nil when a part of the review of PROPOSAL is on the screen."
  (cl-some #'qwen-companion-diff-seen-window
           (qwen-companion-ediff--buffers proposal)))

(cl-defmethod qwen-companion-diff-frame ((_style (eql 'ediff)) proposal)
  "Return the frame in which PROPOSAL was shown last, live or not."
  (when-let ((view (qwen-companion-proposal-view proposal)))
    (qwen-companion-ediff--view-frame view)))

(provide 'qwen-companion-ediff)
;;; qwen-companion-ediff.el ends here
